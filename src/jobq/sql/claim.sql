-- Claims up to `free` jobs: for each tenant in turn at most its share, over its lanes by priority. A span is a stretch
-- of one lane: after (run_at, id), up to until; a share's spans come as array literals, so that no share looks at those of
-- others. Locks only what it takes, so that rivals take the next ones. Commits asynchronously, alone of all state
-- changes: a claim that a crash of the server forgets is a job that is claimed again. Where a job may hold a slot, or its kind is
-- `durable`, it commits as the session is set: a crash must not free a slot, or start that kind twice.
-- Jobs that a limit may concern are put to admit, those of kinds beyond `kinds` (NULL: all are known) to refuse_kinds; those that may not
-- start come back after the claimed ones, with what blocks them. Kinds in `left_out` are walked over; the last row is then the
-- time up to which that was done.
WITH hasty AS MATERIALIZED (
    SELECT current_setting('synchronous_commit') AS before, set_config('synchronous_commit', 'off', true) AS commit
), picked AS MATERIALIZED (
    SELECT job.id, job.kind, job.queue, job.tenant, job.priority, job.run_at, job.concurrency_key
    FROM hasty, unnest(%(most)s::integer[], %(queues)s::text[], %(tenants)s::text[], %(priorities)s::text[],
                %(after_run_ats)s::text[], %(after_ids)s::text[], %(untils)s::text[])
         AS share(most, queues, tenants, priorities, after_run_ats, after_ids, untils), LATERAL (
        SELECT head.id, head.kind, head.queue, head.tenant, head.priority, head.run_at, head.concurrency_key
        FROM unnest(share.queues::text[], share.tenants::text[], share.priorities::smallint[],
                    share.after_run_ats::timestamptz[], share.after_ids::bigint[], share.untils::timestamptz[])
             AS span(queue, tenant, priority, after_run_at, after_id, until), LATERAL (
            SELECT j.id, j.kind, j.queue, j.tenant, j.priority, j.run_at, j.concurrency_key
            FROM {schema}.job j
            WHERE j.status = 'QUEUED' AND j.held_by IS NULL
              AND j.queue = span.queue AND j.tenant = span.tenant AND j.priority = span.priority
              AND (j.run_at, j.id) > (span.after_run_at, span.after_id) AND j.run_at <= least(span.until, now())
              AND (%(left_out)s::text[] = '{{}}' OR {schema}.unknown_kind(j.kind, j.queue) <> ALL (%(left_out)s::text[]))
            ORDER BY j.run_at, j.id
            LIMIT share.most
            FOR NO KEY UPDATE SKIP LOCKED
        ) head
        LIMIT share.most
    ) job
    LIMIT %(free)s
), strange AS MATERIALIZED (
    SELECT array_agg(id) AS ids, count(*) = (SELECT count(*) FROM picked) AS nothing_else FROM picked
    WHERE %(kinds)s::text[] IS NOT NULL AND kind NOT IN (SELECT unnest(%(kinds)s::text[]))
    HAVING count(*) > 0
), limited AS (
    SELECT array_agg(id) AS ids FROM picked
    WHERE (id = ANY ((SELECT ids FROM strange)::bigint[])) IS NOT TRUE AND (concurrency_key IS NOT NULL
       OR tenant IN (SELECT name FROM {schema}.limiter WHERE restricts AND scope = 'tenant' AND name = ANY (ARRAY(SELECT tenant FROM picked)))
       OR queue IN (SELECT name FROM {schema}.limiter WHERE restricts AND scope = 'queue' AND name = ANY (ARRAY(SELECT queue FROM picked)))
       OR kind IN (SELECT name FROM {schema}.limiter WHERE restricts AND scope = 'kind' AND name = ANY (ARRAY(SELECT kind FROM picked))))
    HAVING count(*) > 0
), careful AS MATERIALIZED (
    SELECT set_config('synchronous_commit', before, true) AS commit FROM hasty
    WHERE EXISTS (SELECT FROM limited) OR EXISTS (SELECT FROM picked WHERE kind = ANY (%(durable)s::text[]))
), blocked AS MATERIALIZED (
    SELECT b.blocked_id, b.reason, b.blocked_by, b.held, b.retry_in
    FROM limited, LATERAL {schema}.admit(%(lease)s, limited.ids) b
    UNION ALL
    SELECT b.blocked_id, b.reason, b.blocked_by, b.held, NULL FROM strange, LATERAL {schema}.refuse_kinds(strange.ids, strange.nothing_else) b
), claimed AS (
    UPDATE {schema}.job j
    SET status = 'RUNNING', attempts = least(j.attempts, 2147483646) + 1, lease = %(lease)s, worker = %(worker)s,
        max_attempts = coalesce(j.max_attempts, %(default_max_attempts)s), timeout = coalesce(j.timeout, %(default_timeout)s),
        started_at = clock_timestamp(), lease_until = now() + make_interval(secs => %(lease_seconds)s),
        deadline = now() + make_interval(secs => coalesce(j.timeout, %(default_timeout)s) + %(grace)s),
        progress = NULL
    WHERE j.id = ANY (ARRAY(SELECT id FROM picked, (SELECT count(*) FROM careful) c WHERE id NOT IN (SELECT blocked_id FROM blocked)))
    RETURNING j.id, j.kind, j.queue, j.tenant, j.priority, j.payload::text, j.attempts, j.max_attempts, j.timeout, j.run_at,
              extract(epoch FROM j.started_at - j.ready_at)::double precision AS waited, j.tags, j.meta::text
)
SELECT id, kind, queue, tenant, priority, payload, attempts, max_attempts, timeout, run_at, waited, tags, meta,
       NULL AS reason, NULL AS blocked_by
FROM claimed
UNION ALL
SELECT p.id, p.kind, p.queue, p.tenant, p.priority, NULL, b.held::integer, NULL, NULL, p.run_at, b.retry_in, NULL, NULL,
       b.reason, b.blocked_by
FROM blocked b JOIN picked p ON p.id = b.blocked_id
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, now(), NULL, NULL, NULL, 'walked', NULL
WHERE %(left_out)s::text[] <> '{{}}'
