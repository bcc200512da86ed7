-- The latest progress of runs that still hold. It never waits: a row that a rival has locked, like one whose lease was
-- lost, is not written and does not come back.
WITH input AS (
    SELECT in_id, in_lease, in_progress
    FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(progress)s::text[]) AS i(in_id, in_lease, in_progress)
), mine AS (
    SELECT j.id AS mine_id, in_progress
    FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
    WHERE j.id = ANY (%(ids)s::bigint[])
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {schema}.job SET progress = in_progress::jsonb
FROM mine
WHERE id = ANY (%(ids)s::bigint[]) AND id = mine_id
RETURNING id, lease
