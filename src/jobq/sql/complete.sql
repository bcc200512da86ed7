-- RUNNING -> DONE for every (id, lease) that still holds: out of job, into the archive, its unique key and slots freed.
-- Rows come back for what was written; a pair that is missing has lost its lease. `id = ANY` bounds the scan whatever the
-- statistics say; the pairs are the fence (only a running job has a lease). IS TRUE keeps them a filter on that scan: as a
-- join they might decide its order, and batches that lock in another order than that of ids deadlock.
WITH input AS (
    SELECT in_id, in_lease, in_result
    FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(results)s::text[]) AS i(in_id, in_lease, in_result)
), gone AS (
    DELETE FROM {schema}.job
    WHERE id = ANY (%(ids)s::bigint[]) AND ((id, lease) IN (SELECT in_id, in_lease FROM input)) IS TRUE
    RETURNING id, lease, {moved}, last_error, history,
              CASE WHEN id = ANY (%(dropped)s::bigint[]) THEN NULL ELSE payload END AS payload
), freed AS (
    DELETE FROM {schema}.key
    WHERE scope = 'live' AND job_id = ANY (ARRAY(SELECT id FROM gone WHERE unique_key IS NOT NULL))
), slots AS (
    SELECT {schema}.free_slots(array_agg(s.job_id), array_agg(s.lease), array_agg(gone.tenant))
    FROM {schema}.cap_slot s JOIN gone ON gone.id = s.job_id AND gone.lease = s.lease
    WHERE s.job_id = ANY (%(ids)s::bigint[])
    HAVING count(*) > 0
)
INSERT INTO {schema}.job_archive_done (id, lease, class, status, finished_at, {moved}, last_error, history, result, payload)
SELECT id, lease, 'done', 'DONE', clock_timestamp(), {moved}, last_error, history, in_result::jsonb, payload
FROM gone JOIN input ON in_id = id AND in_lease = lease, (SELECT count(*) FROM slots) freed_slots
RETURNING id, lease
