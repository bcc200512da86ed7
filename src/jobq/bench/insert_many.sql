-- The same for many payloads.
INSERT INTO jobq.job (kind, queue, tenant, priority, status, payload, max_attempts, timeout, created_at, run_at, ready_at)
SELECT 'email.welcome', 'default', 'default', 0, 'QUEUED', payload::jsonb, 5, 300, clock_timestamp(), clock_timestamp(),
       clock_timestamp()
FROM unnest(%(payloads)s::text[]) AS input (payload)
RETURNING id
