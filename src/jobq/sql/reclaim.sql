-- Jobs whose lease ended: QUEUED again at once, DEAD when that was the last attempt, CANCELLED when that was asked for.
-- One conditional statement on status and expiry: a job completed meanwhile is not touched. `only` restricts it to
-- some ids, so that one row that cannot be changed does not keep the others; `spared` are not judged yet.
WITH expired AS MATERIALIZED (
    SELECT id AS expired_id, lease AS expired_lease, tenant AS expired_tenant,
           CASE WHEN cancel_requested_at IS NOT NULL THEN 'CANCELLED' WHEN attempts >= max_attempts THEN 'DEAD' ELSE 'QUEUED' END AS fate
    FROM {schema}.job
    WHERE status = 'RUNNING' AND lease_until > %(floor)s AND lease_until <= now()
      AND (%(only)s::bigint[] IS NULL OR id = ANY (%(only)s::bigint[])) AND id <> ALL (%(spared)s::bigint[])
    ORDER BY lease_until, id
    LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
), requeued AS (
    UPDATE {schema}.job
    SET status = 'QUEUED', ready_at = clock_timestamp(), lease = NULL, lease_until = NULL, deadline = NULL, worker = NULL,
        last_error = 'lease expired',
        history = {schema}.add_attempt(history, attempts, started_at, worker, 'lease_lost', 'lease expired')
    FROM expired
    WHERE id = ANY (ARRAY(SELECT expired_id FROM expired)) AND id = expired_id AND fate = 'QUEUED'
    RETURNING id, kind, fate, queue, tenant, priority, run_at
), gone AS (
    DELETE FROM {schema}.job USING expired
    WHERE id = ANY (ARRAY(SELECT expired_id FROM expired)) AND id = expired_id AND fate <> 'QUEUED'
    RETURNING id, lease, {moved}, fate,
              {schema}.add_attempt(history, attempts, started_at, worker, 'lease_lost', 'lease expired') AS history, result,
              CASE WHEN fate = 'DEAD' OR octet_length(payload::text) <= %(keep_payload)s THEN payload END AS payload
), freed AS (
    DELETE FROM {schema}.key
    WHERE scope = 'live' AND job_id = ANY (ARRAY(SELECT id FROM gone WHERE unique_key IS NOT NULL))
), filed AS (
    INSERT INTO {schema}.job_archive (id, lease, class, status, finished_at, {moved}, last_error, history, result, payload)
    SELECT id, lease, CASE fate WHEN 'CANCELLED' THEN 'done' ELSE 'dead' END, fate, clock_timestamp(), {moved}, 'lease expired',
           history, result, payload
    FROM gone
    RETURNING id, kind, status, queue, tenant, priority, run_at
), announced AS (
    SELECT {schema}.announce(array_agg({schema}.lane_token(queue, tenant, priority)), array_agg(run_at), array_agg(run_at))
    FROM requeued
), slots AS (
    SELECT {schema}.free_slots(array_agg(s.job_id), array_agg(s.lease), array_agg(expired_tenant))
    FROM {schema}.cap_slot s JOIN expired ON expired_id = s.job_id AND expired_lease = s.lease
    WHERE s.job_id = ANY (ARRAY(SELECT expired_id FROM expired))
    HAVING count(*) > 0
)
SELECT ends.id, ends.kind, ends.status, ends.queue, ends.tenant, ends.priority, ends.run_at
FROM (SELECT id, kind, fate AS status, queue, tenant, priority, run_at FROM requeued
      UNION ALL
      SELECT id, kind, status, queue, tenant, priority, run_at FROM filed) ends, announced, (SELECT count(*) FROM slots) freed_slots
