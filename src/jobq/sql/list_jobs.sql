-- Jobs, newest first, after a cursor (an id); each filter may be NULL. Without payload, result and history.
-- The classes spare a search for DEAD jobs the far larger partitions of DONE ones.
SELECT id, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at, ready_at, started_at,
       finished_at, worker, cancel_requested_at, held_by, concurrency_key, idempotency_key, unique_key, last_error, tags,
       meta::text AS meta, progress::text AS progress
FROM (
    SELECT id, 'live' AS class, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at,
           ready_at, started_at, NULL::timestamptz AS finished_at, worker, cancel_requested_at, held_by, concurrency_key,
           idempotency_key, unique_key, last_error, tags, meta, progress
    FROM {schema}.job
    UNION ALL
    SELECT id, class, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at,
           ready_at, started_at, finished_at, worker, cancel_requested_at, NULL, concurrency_key,
           idempotency_key, unique_key, last_error, tags, meta, progress
    FROM {schema}.job_archive
) jobs
WHERE (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
  AND (%(classes)s::text[] IS NULL OR class = ANY (%(classes)s::text[]))
  AND (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s::text[]))
  AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(tag)s::text IS NULL OR %(tag)s::text = ANY (tags))
ORDER BY id DESC
LIMIT %(most)s
