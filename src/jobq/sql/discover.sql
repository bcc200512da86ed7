-- Lanes with something to claim, in index order after a lane, and the first job of each: one index probe a lane
-- (a loose index scan, PostgreSQL wiki), whatever their length. The walk ends after queue `last`.
WITH RECURSIVE lane AS (
    (SELECT j.queue, j.tenant, j.priority, j.run_at, j.id, 1 AS n
     FROM {schema}.job j
     WHERE j.status = 'QUEUED' AND j.held_by IS NULL
       AND (j.queue, j.tenant, j.priority) > (%(queue)s, %(tenant)s, %(priority)s::smallint) AND j.queue <= %(last)s
     ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id
     LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.tenant, next.priority, next.run_at, next.id, lane.n + 1
     FROM lane, LATERAL (
         SELECT j.queue, j.tenant, j.priority, j.run_at, j.id
         FROM {schema}.job j
         WHERE j.status = 'QUEUED' AND j.held_by IS NULL
           AND (j.queue, j.tenant, j.priority) > (lane.queue, lane.tenant, lane.priority) AND j.queue <= %(last)s
         ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id
         LIMIT 1
     ) next
     WHERE lane.n < %(most)s)
)
SELECT queue, tenant, priority, run_at, id, run_at <= now() AS due FROM lane ORDER BY n
