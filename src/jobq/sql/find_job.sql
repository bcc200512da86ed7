-- One job, live or finished, in one statement: a job on its way to the archive is never missing.
-- JSON comes as text: what SQL may hold (1e5000) no reader need be able to decode.
SELECT id, kind, queue, tenant, priority, status, attempts, max_attempts, timeout, created_at, run_at, ready_at, started_at,
       finished_at, worker, cancel_requested_at, held_by, concurrency_key, idempotency_key, unique_key, last_error, tags,
       meta::text AS meta, payload::text AS payload, result::text AS result, progress::text AS progress,
       history::text AS history
FROM {schema}.jobs
WHERE id = %(id)s
