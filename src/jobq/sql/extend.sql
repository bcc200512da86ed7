-- Extends leases from the present clock on, which may have been set back, and never past the deadline of a run. SKIP LOCKED: a row that
-- is being finished needs no extension. Comes back for every pair that still holds: whether it was extended, and whether its
-- cancellation was asked for.
WITH input AS (
    SELECT in_id, in_lease FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]) AS i(in_id, in_lease)
), mine AS (
    SELECT j.id AS mine_id
    FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
    WHERE j.id = ANY (%(ids)s::bigint[])
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
), extended AS (
    UPDATE {schema}.job
    SET lease_until = least(now() + make_interval(secs => %(lease_seconds)s), deadline)
    FROM mine
    WHERE id = ANY (%(ids)s::bigint[]) AND id = mine_id
    RETURNING id
)
SELECT j.id, j.lease, j.id IN (SELECT id FROM extended) AS extended, j.cancel_requested_at IS NOT NULL AS cancelled
FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
WHERE j.id = ANY (%(ids)s::bigint[])
