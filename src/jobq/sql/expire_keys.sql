-- A bounded batch of idempotency keys past their life.
DELETE FROM {schema}.key
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {schema}.key
    WHERE scope = 'retained' AND created_at < now() - make_interval(secs => %(life)s)
    ORDER BY created_at
    LIMIT %(most)s
    FOR UPDATE SKIP LOCKED))
RETURNING 1
