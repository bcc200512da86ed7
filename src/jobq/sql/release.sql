-- RUNNING -> QUEUED at shutdown, the attempt given back, for every (id, lease) that still holds; a job whose
-- cancellation was asked for ends CANCELLED instead. Announces its lanes.
WITH input AS (
    SELECT in_id, in_lease FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]) AS i(in_id, in_lease)
), held AS MATERIALIZED (
    SELECT j.id AS held_id, in_lease, j.tenant AS held_tenant, j.cancel_requested_at IS NOT NULL AS cancelled
    FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
    WHERE j.id = ANY (%(ids)s::bigint[])
    ORDER BY j.id
    FOR UPDATE OF j
), released AS (
    UPDATE {schema}.job
    SET status = 'QUEUED', attempts = attempts - 1, ready_at = clock_timestamp(), lease = NULL, lease_until = NULL,
        deadline = NULL, worker = NULL,
        history = {schema}.add_attempt(history, attempts, started_at, worker, 'released', NULL)
    FROM held
    WHERE id = ANY (%(ids)s::bigint[]) AND id = held_id AND NOT cancelled
    RETURNING id, in_lease, queue, tenant, priority, run_at
), gone AS (
    DELETE FROM {schema}.job USING held
    WHERE id = ANY (%(ids)s::bigint[]) AND id = held_id AND cancelled
    RETURNING id, lease, {moved}, last_error, {schema}.add_attempt(history, attempts, started_at, worker, 'cancelled', NULL) AS history, result,
              CASE WHEN octet_length(payload::text) <= %(keep_payload)s THEN payload END AS payload
), freed AS (
    DELETE FROM {schema}.key
    WHERE scope = 'live' AND job_id = ANY (ARRAY(SELECT id FROM gone WHERE unique_key IS NOT NULL))
), filed AS (
    INSERT INTO {schema}.job_archive_done (id, lease, class, status, finished_at, {moved}, last_error, history, result, payload)
    SELECT id, lease, 'done', 'CANCELLED', clock_timestamp(), {moved}, last_error, history, result, payload FROM gone
    RETURNING id, lease
), announced AS (
    SELECT {schema}.announce(array_agg({schema}.lane_token(queue, tenant, priority)), array_agg(run_at), array_agg(run_at))
    FROM released
), slots AS (
    SELECT {schema}.free_slots(array_agg(s.job_id), array_agg(s.lease), array_agg(held_tenant))
    FROM {schema}.cap_slot s JOIN held ON held_id = s.job_id AND in_lease = s.lease
    WHERE s.job_id = ANY (%(ids)s::bigint[])
    HAVING count(*) > 0
)
SELECT ends.id, ends.lease, ends.status
FROM (SELECT id, in_lease AS lease, 'QUEUED' AS status FROM released
      UNION ALL
      SELECT id, lease, 'CANCELLED' FROM filed) ends, announced, (SELECT count(*) FROM slots) freed_slots
