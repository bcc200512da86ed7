-- A bounded batch of idempotency keys past their life.
DELETE FROM {schema}.key
WHERE (tenant, scope, key) IN (
    SELECT tenant, scope, key FROM {schema}.key
    WHERE scope = 'retained' AND created_at < clock_timestamp() - make_interval(secs => %(life)s)
    ORDER BY created_at
    LIMIT %(most)s
    FOR UPDATE SKIP LOCKED)
RETURNING 1
