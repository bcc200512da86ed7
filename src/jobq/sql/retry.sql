-- Queues jobs again by hand: SCHEDULED ones run now, DEAD ones start over with attempts 0, FAILED and CANCELLED too when forced.
-- A unique key is taken again first; where another live job holds it, nothing changes, nor
-- where the payload was dropped. Comes back with a row for each job that it was done to.
WITH waiting AS (
    UPDATE {schema}.job
    SET status = 'QUEUED', run_at = clock_timestamp(), ready_at = clock_timestamp()
    WHERE id = ANY (ARRAY(
        SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::bigint[]) AND status = 'SCHEDULED' ORDER BY id FOR UPDATE
    ))
    RETURNING id, queue, tenant, priority, run_at
), finished AS MATERIALIZED (
    -- One id at a time (see cancel.sql).
    SELECT found.*
    FROM (SELECT DISTINCT id FROM unnest(%(ids)s::bigint[]) AS id ORDER BY id) i,
         LATERAL (
             SELECT a.id AS finished_id, a.tenant, a.unique_key FROM {schema}.job_archive a
             WHERE a.id = i.id AND (a.status = 'DEAD' OR (%(force)s AND a.status IN ('FAILED', 'CANCELLED'))) AND a.payload IS NOT NULL
             LIMIT 1 FOR UPDATE
         ) found
), taken AS (
    INSERT INTO {schema}.key (tenant, scope, key, job_id)
    SELECT tenant, 'live', unique_key, finished_id FROM finished WHERE unique_key IS NOT NULL ORDER BY tenant, unique_key, finished_id
    ON CONFLICT DO NOTHING
    RETURNING job_id
), gone AS (
    DELETE FROM {schema}.job_archive a
    WHERE a.id = ANY (ARRAY(SELECT finished_id FROM finished WHERE unique_key IS NULL OR finished_id IN (SELECT job_id FROM taken)))
    RETURNING a.id, a.kind, a.queue, a.tenant, a.priority, a.max_attempts, a.timeout, a.created_at, a.concurrency_key,
              a.idempotency_key, a.unique_key, a.last_error, a.tags, a.meta, a.payload, a.history
), revived AS (
    INSERT INTO {schema}.job (id, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at,
                              ready_at, concurrency_key, idempotency_key, unique_key, last_error, tags, meta, payload, history)
    SELECT id, kind, queue, tenant, priority, 'QUEUED', 0, max_attempts, timeout, created_at, clock_timestamp(),
           clock_timestamp(), concurrency_key, idempotency_key, unique_key, last_error, tags, meta, payload, history
    FROM gone
    RETURNING id, queue, tenant, priority, run_at
), ready AS (
    SELECT id, queue, tenant, priority, run_at FROM waiting
    UNION ALL
    SELECT id, queue, tenant, priority, run_at FROM revived
), announced AS (
    SELECT {schema}.announce(array_agg({schema}.lane_token(queue, tenant, priority)), array_agg(run_at), array_agg(run_at)) FROM ready
)
SELECT id, 'QUEUED' AS status FROM ready, announced
