-- Due jobs SCHEDULED -> QUEUED, a batch, by whichever worker holds the election for this statement; announces their
-- lanes. Comes back with one row: how many were moved, and seconds until the next is due;
-- besides, since every worker asks at each poll, whether jobs are held, and the version of the limits.
WITH elected AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended({schema_text} || '.promote', 0)) AS won
), due AS MATERIALIZED (
    SELECT j.id AS due_id FROM {schema}.job j
    WHERE (SELECT won FROM elected) AND j.status = 'SCHEDULED' AND j.run_at >= %(floor)s AND j.run_at <= now()
    ORDER BY j.run_at, j.id
    LIMIT %(most)s
    FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
    UPDATE {schema}.job SET status = 'QUEUED', ready_at = run_at
    WHERE id = ANY (ARRAY(SELECT due_id FROM due))
    RETURNING queue, tenant, priority, run_at
), announced AS (
    SELECT count(*) AS moved, max(run_at) AS last,
           {schema}.announce(array_agg({schema}.lane_token(queue, tenant, priority)), array_agg(run_at), array_agg(run_at))
    FROM promoted
)
SELECT (SELECT won FROM elected) AS won, moved, last,
       (SELECT extract(epoch FROM min(j.run_at) - clock_timestamp())::double precision
        FROM (SELECT run_at FROM {schema}.job
              WHERE status = 'SCHEDULED' AND run_at > now() ORDER BY run_at LIMIT 1) j) AS next_in,
       EXISTS (SELECT FROM {schema}.job WHERE held_by IS NOT NULL) AS held,
       (SELECT version FROM {schema}.limiter_version) AS limits
FROM announced
