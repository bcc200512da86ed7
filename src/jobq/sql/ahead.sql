-- How many jobs come before a job in fair order, and the slots of the workers that serve its queue, with what
-- these can do a second: slots by the time that a run takes, at most 20,000 each, or what ended lately where that is more. Own: those of its tenant,
-- in queues that these workers serve, of higher priority, or of the same and earlier. Other: while these and the job itself
-- start, each other tenant starts as many, times the ratio of their weights, as far as it has them. Walks the claim index like
-- discover.sql, past paused tenants and queues, and ends at `most` jobs of either sort, and at `most` lanes.
WITH RECURSIVE busy AS (
    SELECT r.worker, count(*) AS jobs, count(*) FILTER (WHERE r.tenant = %(tenant)s) AS own
    FROM {schema}.job r WHERE r.status = 'RUNNING' GROUP BY r.worker
), serving AS MATERIALIZED (
    SELECT w.queues, w.draining, w.claim_loop_ok, w.claim_loop_ok AND NOT w.draining AS able, w.slots,
           greatest(w.finished_per_second, CASE WHEN w.run_seconds > 0 THEN least(w.slots / w.run_seconds, 20000) END) AS runs_per_second,
           coalesce(busy.jobs, 0) AS running,
           greatest(0, w.slots - coalesce(busy.jobs, 0)) AS free,
           CASE WHEN busy.own > 0 THEN 0 ELSE greatest(0, w.express - greatest(0, coalesce(busy.jobs, 0) - w.slots)) END AS express
    FROM {schema}.worker w LEFT JOIN busy ON busy.worker = w.id
    WHERE w.expires_at > clock_timestamp() AND (w.queues IS NULL OR %(queue)s = ANY (w.queues))
), fleet AS MATERIALIZED (
    SELECT bool_or(s.queues IS NULL) AS every, (SELECT array_agg(q.name) FROM serving, unnest(serving.queues) AS q(name)) AS queues,
           count(*) AS workers, count(*) FILTER (WHERE s.draining) AS draining,
           count(*) FILTER (WHERE NOT s.claim_loop_ok AND NOT s.draining) AS stalled,
           coalesce(sum(s.slots) FILTER (WHERE s.able), 0) AS slots, coalesce(sum(s.running) FILTER (WHERE s.able), 0) AS running,
           coalesce(sum(s.free) FILTER (WHERE s.able), 0) AS free, coalesce(sum(s.express) FILTER (WHERE s.able), 0) AS express,
           coalesce(sum(s.runs_per_second) FILTER (WHERE s.able), 0) AS runs_per_second
    FROM serving s
), paused AS MATERIALIZED (
    SELECT coalesce(array_agg(l.name) FILTER (WHERE l.scope = 'queue'), '{{}}') AS queues,
           coalesce(array_agg(l.name) FILTER (WHERE l.scope = 'tenant'), '{{}}') AS tenants
    FROM {schema}.limiter l WHERE l.restricts AND l.paused AND l.scope IN ('queue', 'tenant')
), queue AS (
    SELECT ''::text COLLATE "C" AS name, false AS open, 0 AS n
    UNION ALL
    SELECT next.queue, (fleet.every OR next.queue = ANY (fleet.queues)) AND next.queue <> ALL (paused.queues), queue.n + 1
    FROM queue, fleet, paused, LATERAL (
        SELECT j.queue FROM {schema}.job j
        WHERE j.status = 'QUEUED' AND j.held_by IS NULL AND j.queue > queue.name
        ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id LIMIT 1
    ) next
    WHERE queue.n < %(most)s
), own AS MATERIALIZED (
    SELECT count(*) AS jobs FROM (
        SELECT FROM queue, LATERAL (
            SELECT 1 FROM {schema}.job j
            WHERE j.status = 'QUEUED' AND j.held_by IS NULL AND j.queue = queue.name AND j.tenant = %(tenant)s
              AND j.priority > %(priority)s
            UNION ALL
            SELECT 1 FROM {schema}.job j
            WHERE j.status = 'QUEUED' AND j.held_by IS NULL AND j.queue = queue.name AND j.tenant = %(tenant)s
              AND j.priority = %(priority)s AND (j.run_at, j.id) < (%(run_at)s, %(id)s)
        ) before
        WHERE queue.open
        LIMIT %(most)s
    ) counted
), weight AS MATERIALIZED (
    SELECT coalesce((t.queue_weights ->> %(queue)s)::double precision, t.weight, 1) * coalesce(q.weight, 1) AS own
    FROM (VALUES (1)) AS v(one)
    LEFT JOIN {schema}.limiter t ON t.scope = 'tenant' AND t.name = %(tenant)s
    LEFT JOIN {schema}.limiter q ON q.scope = 'queue' AND q.name = %(queue)s
), pair AS (
    SELECT ''::text COLLATE "C" AS queue, ''::text COLLATE "C" AS tenant, true AS open, 0::bigint AS share, 0::bigint AS jobs,
           0::bigint AS seen, 0 AS n
    UNION ALL
    SELECT next.queue, next.tenant, lane.open, lane.share, backlog.jobs, pair.seen + backlog.jobs, pair.n + 1
    FROM pair, own, weight, LATERAL (
        SELECT j.queue, j.tenant FROM {schema}.job j
        WHERE j.status = 'QUEUED' AND j.held_by IS NULL
          AND (j.queue, j.tenant) > (pair.queue, CASE WHEN pair.open THEN pair.tenant ELSE %(last)s END)
        ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id LIMIT 1
    ) next, LATERAL (
        SELECT q.open,
               CASE WHEN NOT q.open OR next.tenant = %(tenant)s OR next.tenant = ANY (paused.tenants) THEN 0
                    ELSE least(%(most)s, round((own.jobs + 1) / weight.own
                         * coalesce((t.queue_weights ->> next.queue)::double precision, t.weight, 1) * coalesce(w.weight, 1))) END::bigint
               AS share
        FROM fleet, paused, LATERAL (SELECT (fleet.every OR next.queue = ANY (fleet.queues)) AND next.queue <> ALL (paused.queues) AS open) q
        LEFT JOIN {schema}.limiter t ON t.scope = 'tenant' AND t.name = next.tenant
        LEFT JOIN {schema}.limiter w ON w.scope = 'queue' AND w.name = next.queue
    ) lane, LATERAL (
        SELECT count(*) AS jobs FROM (
            SELECT FROM {schema}.job j
            WHERE j.status = 'QUEUED' AND j.held_by IS NULL AND j.queue = next.queue AND j.tenant = next.tenant
            LIMIT least(lane.share, %(most)s - pair.seen)) counted
    ) backlog
    WHERE pair.seen < %(most)s AND pair.n < %(most)s
), other AS (
    SELECT coalesce(sum(least(jobs, share)), 0) AS jobs, max(seen) AS seen, max(n) AS n
    FROM (SELECT sum(pair.jobs) AS jobs, max(pair.share) AS share, max(pair.seen) AS seen, max(pair.n) AS n
          FROM pair GROUP BY pair.tenant) tenant
)
SELECT own.jobs::integer AS own, other.jobs::integer AS other, greatest(own.jobs, other.seen, other.n) >= %(most)s AS at_least,
       fleet.workers::integer, fleet.draining::integer, fleet.stalled::integer, fleet.slots::integer, fleet.running::integer,
       fleet.free::integer, fleet.express::integer, fleet.runs_per_second
FROM own, other, fleet
