-- The row that an enqueue of `email.welcome` makes, as an application without a queue would insert it.
INSERT INTO jobq.job (kind, queue, tenant, priority, status, payload, max_attempts, timeout, created_at, run_at, ready_at)
VALUES ('email.welcome', 'default', 'default', 0, 'QUEUED', %(payload)s::jsonb, 5, 300, clock_timestamp(), clock_timestamp(),
        clock_timestamp())
RETURNING id
