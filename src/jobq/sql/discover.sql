-- Lanes with something to claim, in index order after a lane, and the first job of each: one index probe a lane
-- (a loose index scan, PostgreSQL wiki), whatever their length. A queue list restricts the walk.
WITH RECURSIVE lane AS (
    (SELECT j.queue, j.tenant, j.priority, j.run_at, j.id, 1 AS n
     FROM {schema}.job j
     WHERE j.status = 'QUEUED' AND j.held_by IS NULL
       AND (j.queue, j.tenant, j.priority) > (%(queue)s, %(tenant)s, %(priority)s::smallint)
     ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id
     LIMIT 1)
    UNION ALL
    (SELECT next.queue, next.tenant, next.priority, next.run_at, next.id, lane.n + 1
     FROM lane, LATERAL (
         SELECT j.queue, j.tenant, j.priority, j.run_at, j.id
         FROM {schema}.job j
         WHERE j.status = 'QUEUED' AND j.held_by IS NULL
           AND (j.queue, j.tenant, j.priority) > (lane.queue, lane.tenant, lane.priority)
         ORDER BY j.queue, j.tenant, j.priority, j.run_at, j.id
         LIMIT 1
     ) next
     WHERE lane.n < %(most)s)
)
SELECT queue, tenant, priority, run_at, id FROM lane WHERE run_at <= now() ORDER BY n
