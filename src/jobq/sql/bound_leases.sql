-- Leases that end later than any worker would extend them end one lease from now: the database's clock was set back, and their owner may
-- be gone. A worker's row expires one lease of its own after its last heartbeat, so no live worker's lease is shortened.
WITH longest AS MATERIALIZED (
    SELECT greatest(make_interval(secs => %(lease_seconds)s), max(expires_at - heartbeat_at)) AS lease FROM {schema}.worker
), beyond AS MATERIALIZED (
    SELECT id AS beyond_id FROM {schema}.job
    WHERE status = 'RUNNING' AND lease_until > now() + (SELECT lease FROM longest) + interval '5 s'
    ORDER BY lease_until DESC, id DESC
    LIMIT 1000
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {schema}.job SET lease_until = now() + (SELECT lease FROM longest)
FROM beyond WHERE id = ANY (ARRAY(SELECT beyond_id FROM beyond)) AND id = beyond_id
RETURNING id
