-- The end of a run that did not succeed, for every (id, lease) that still holds. The database decides: a cancel request
-- wins, then a permanent error, then exhausted attempts; otherwise the job waits for its backoff, drawn here by this
-- clock: uniform in (0, least(maximum, base * 2^(attempt-1))], ten years (315,360,000 s) at most.
WITH input AS (
    SELECT in_id, in_lease, in_verdict, in_error, in_delay
    FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(verdicts)s::text[], %(errors)s::text[],
                %(delays)s::double precision[])
         AS i(in_id, in_lease, in_verdict, in_error, in_delay)
), ended AS MATERIALIZED (
    SELECT j.id AS ended_id, in_lease, in_error, j.tenant AS ended_tenant,
           CASE WHEN j.cancel_requested_at IS NOT NULL OR in_verdict = 'stopped' THEN 'CANCELLED'
                WHEN in_verdict = 'permanent' THEN 'FAILED'
                WHEN j.attempts >= j.max_attempts THEN 'DEAD'
                ELSE 'SCHEDULED' END AS fate,
           least(315360000, greatest(0, coalesce(in_delay, (1 - random()) * least(%(maximum)s::double precision,
               least(315360000, %(base)s::double precision) * 2 ^ least(greatest(j.attempts - 1, 0), 30))))) AS delay
    FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
    WHERE j.id = ANY (%(ids)s::bigint[])
    ORDER BY j.id
    FOR UPDATE OF j
), retried AS (
    UPDATE {schema}.job
    SET status = 'SCHEDULED', run_at = clock_timestamp() + make_interval(secs => delay), ready_at = NULL, lease = NULL,
        lease_until = NULL, deadline = NULL, worker = NULL, last_error = in_error,
        history = {schema}.add_attempt(history, attempts, started_at, worker, 'retry', in_error)
    FROM ended
    WHERE id = ANY (%(ids)s::bigint[]) AND id = ended_id AND fate = 'SCHEDULED'
    RETURNING id, in_lease, fate, run_at
), gone AS (
    DELETE FROM {schema}.job USING ended
    WHERE id = ANY (%(ids)s::bigint[]) AND id = ended_id AND fate <> 'SCHEDULED'
    RETURNING id, lease, {moved}, fate, in_error AS last_error,
              {schema}.add_attempt(history, attempts, started_at, worker, lower(fate), in_error) AS history, result,
              CASE WHEN fate = 'CANCELLED' AND id = ANY (%(dropped)s::bigint[]) THEN NULL ELSE payload END AS payload
), freed AS (
    DELETE FROM {schema}.key
    WHERE scope = 'live' AND job_id = ANY (ARRAY(SELECT id FROM gone WHERE unique_key IS NOT NULL))
), filed AS (
    INSERT INTO {schema}.job_archive (id, lease, class, status, finished_at, {moved}, last_error, history, result, payload)
    SELECT id, lease, CASE fate WHEN 'CANCELLED' THEN 'done' ELSE 'dead' END, fate, clock_timestamp(), {moved}, last_error, history,
           result, payload
    FROM gone
    RETURNING id, lease, status
), slots AS (
    SELECT {schema}.free_slots(array_agg(s.job_id), array_agg(s.lease), array_agg(ended_tenant))
    FROM {schema}.cap_slot s JOIN ended ON ended_id = s.job_id AND in_lease = s.lease
    WHERE s.job_id = ANY (%(ids)s::bigint[])
    HAVING count(*) > 0
)
SELECT ends.id, ends.lease, ends.status, ends.run_at
FROM (SELECT id, in_lease AS lease, fate AS status, run_at FROM retried
      UNION ALL
      SELECT id, lease, status, NULL FROM filed) ends, (SELECT count(*) FROM slots) freed_slots
