-- What keeps a job from starting: the job, the workers there are, and a row for each limit that concerns it while it waits.
-- Locks nothing and takes no token. One statement, so a job on its way to the archive is never missing.
SELECT j.id, j.kind, j.queue, j.tenant, j.priority, j.status, j.attempts, j.max_attempts, j.run_at, j.started_at, j.finished_at,
       j.worker, j.lease_until, j.cancel_requested_at IS NOT NULL AS cancel_requested, j.last_error, clock_timestamp() AS now,
       fleet.alive, fleet.serving, fleet.knowing,
       l.which, substr(l.scope, length(l.which) + 2) AS name, coalesce((l.rule).paused, false) AS paused, l.cap, slots.taken,
       slots.holders, earlier.jobs AS earlier, earlier.ids AS earlier_ids, (l.rule).rate_limit, (l.rule).rate_period,
       CASE WHEN (l.rule).rate_limit IS NOT NULL
            THEN (1 - {schema}.tokens_now(l.rule, bucket)) / {schema}.refill(l.rule) END AS refill
FROM {schema}.jobs j
CROSS JOIN LATERAL (
    SELECT count(*) AS alive, count(*) FILTER (WHERE serves) AS serving, count(*) FILTER (WHERE serves AND j.kind = ANY (w.kinds)) AS knowing
    FROM {schema}.worker w, LATERAL (SELECT w.queues IS NULL OR j.queue = ANY (w.queues) AS serves) s
    WHERE w.expires_at > clock_timestamp()
) fleet
LEFT JOIN {schema}.job waiting ON waiting.id = %(id)s AND waiting.status IN ('SCHEDULED', 'QUEUED')
LEFT JOIN LATERAL {schema}.limits_of(waiting) l ON waiting.id IS NOT NULL
LEFT JOIN {schema}.rate_bucket bucket ON bucket.scope = l.scope
CROSS JOIN LATERAL (
    SELECT count(*) AS taken, (array_agg(s.job_id ORDER BY s.n))[1:20] AS holders
    FROM {schema}.cap_slot s
    WHERE s.scope = l.scope AND l.cap IS NOT NULL AND s.lease IS NOT NULL
) slots
-- As others_first sees them, which the claim asks.
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, (array_agg(b.id ORDER BY b.priority DESC, b.run_at, b.id))[1:20] AS ids
    FROM (SELECT b.id, b.queue, b.tenant, b.kind, b.priority, b.run_at
          FROM {schema}.job b
          WHERE l.which = 'key' AND b.concurrency_key = waiting.concurrency_key AND b.status = 'QUEUED'
          ORDER BY b.priority DESC, b.run_at, b.id
          LIMIT greatest(l.cap - slots.taken, 0) + 20) b
    WHERE (-b.priority, b.run_at, b.id) < (-waiting.priority, waiting.run_at, waiting.id) AND b.run_at <= now()
      AND {schema}.startable(b.queue, b.tenant, b.kind)
) earlier
WHERE j.id = %(id)s
