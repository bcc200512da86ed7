-- Cancels jobs by id: what waits ends CANCELLED, DEAD and FAILED are dismissed, what runs is asked to stop (its worker
-- is told). Comes back for each job it applied to; DONE and CANCELLED ones do not.
WITH wanted AS MATERIALIZED (
    SELECT id AS wanted_id, status AS before FROM {schema}.job WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id FOR UPDATE
), asked AS (
    UPDATE {schema}.job SET cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp())
    FROM wanted WHERE id = ANY (%(ids)s::bigint[]) AND id = wanted_id AND before = 'RUNNING'
    RETURNING id
), gone AS (
    DELETE FROM {schema}.job USING wanted WHERE id = ANY (%(ids)s::bigint[]) AND id = wanted_id AND before <> 'RUNNING'
    RETURNING id, lease, {moved}, last_error, history, result,
              CASE WHEN octet_length(payload::text) <= %(keep_payload)s THEN payload END AS payload
), freed AS (
    DELETE FROM {schema}.key
    WHERE scope = 'live' AND job_id = ANY (ARRAY(SELECT id FROM gone WHERE unique_key IS NOT NULL))
), dead AS MATERIALIZED (
    -- One id at a time: of a partition that was never analysed the planner thinks that 200 ids are all its rows.
    SELECT found.id AS dead_id
    FROM (SELECT DISTINCT id FROM unnest(%(ids)s::bigint[]) AS id ORDER BY id) i,
         LATERAL (SELECT d.id FROM {schema}.job_archive_dead d WHERE d.id = i.id LIMIT 1 FOR UPDATE) found
), dismissed AS (
    -- An UPDATE of the class would move the row to another partition, and a rival that waits for it would fail.
    DELETE FROM {schema}.job_archive_dead WHERE id = ANY (ARRAY(SELECT dead_id FROM dead))
    RETURNING id, lease, {moved}, last_error, history, result,
              CASE WHEN octet_length(payload::text) <= %(keep_payload)s THEN payload END AS payload
), filed AS (
    INSERT INTO {schema}.job_archive_done (id, lease, class, status, finished_at, {moved}, last_error, history, result, payload)
    SELECT id, lease, 'done', 'CANCELLED', clock_timestamp(), {moved}, last_error, history, result, payload FROM gone
    UNION ALL
    SELECT id, lease, 'done', 'CANCELLED', clock_timestamp(), {moved}, last_error, history, result, payload FROM dismissed
    RETURNING id
), told AS (
    SELECT pg_notify({channel}, 'c ' || CASE WHEN count(*) <= 300 THEN string_agg(id::text, ' ') ELSE '*' END) FROM asked HAVING count(*) > 0
)
SELECT id, 'RUNNING' AS status FROM asked, (SELECT count(*) FROM told) t
UNION ALL
SELECT id, 'CANCELLED' FROM filed
