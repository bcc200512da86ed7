-- Jobs, newest first, after a cursor (an id); each filter may be NULL. Without payload, result and history.
SELECT id, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at, ready_at, started_at,
       finished_at, worker, cancel_requested_at, held_by, concurrency_key, idempotency_key, unique_key, last_error, tags,
       meta, progress
FROM {schema}.jobs
WHERE (%(before)s::bigint IS NULL OR id < %(before)s::bigint)
  AND (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s::text[]))
  AND (%(kind)s::text IS NULL OR kind = %(kind)s::text)
  AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
  AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s::text)
  AND (%(tag)s::text IS NULL OR %(tag)s::text = ANY (tags))
ORDER BY id DESC
LIMIT %(most)s
