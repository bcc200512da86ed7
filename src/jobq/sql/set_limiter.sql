-- Sets the columns named in `fields` for a tenant, queue, kind or key, and leaves the others as they are; queue_weights is
-- merged by queue, where null takes one out. A trigger stamps the row and tells the workers: the row lock of limiter_version
-- lets changes wait for one another, so a worker that loads what is newer than the version it knows misses none. A rate's bucket
-- starts full and is kept; what runs already counts under a new cap.
WITH changed AS (
    INSERT INTO {schema}.limiter AS l (scope, name, weight, queue_weights, max_running, max_per_key, rate_limit, rate_period,
                                       rate_burst, paused)
    SELECT %(scope)s, %(name)s, %(weight)s::double precision, nullif(jsonb_strip_nulls(%(queue_weights)s::jsonb), '{{}}'),
           %(max_running)s::integer, %(max_per_key)s::integer, %(rate_limit)s::integer, %(rate_period)s::double precision,
           %(rate_burst)s::integer, coalesce(%(paused)s::boolean, false)
    ON CONFLICT (scope, name) DO UPDATE
    SET weight = CASE WHEN 'weight' = ANY (%(fields)s::text[]) THEN EXCLUDED.weight ELSE l.weight END,
        queue_weights = CASE WHEN %(queue_weights)s::jsonb IS NOT NULL
                             THEN nullif(jsonb_strip_nulls(coalesce(l.queue_weights, '{{}}') || %(queue_weights)s::jsonb), '{{}}')
                             WHEN 'queue_weights' = ANY (%(fields)s::text[]) THEN NULL ELSE l.queue_weights END,
        max_running = CASE WHEN 'max_running' = ANY (%(fields)s::text[]) THEN EXCLUDED.max_running ELSE l.max_running END,
        max_per_key = CASE WHEN 'max_per_key' = ANY (%(fields)s::text[]) THEN EXCLUDED.max_per_key ELSE l.max_per_key END,
        rate_limit = CASE WHEN 'rate_limit' = ANY (%(fields)s::text[]) THEN EXCLUDED.rate_limit ELSE l.rate_limit END,
        rate_period = CASE WHEN 'rate_limit' = ANY (%(fields)s::text[]) THEN EXCLUDED.rate_period ELSE l.rate_period END,
        rate_burst = CASE WHEN 'rate_limit' = ANY (%(fields)s::text[]) THEN EXCLUDED.rate_burst ELSE l.rate_burst END,
        paused = CASE WHEN 'paused' = ANY (%(fields)s::text[]) THEN EXCLUDED.paused ELSE l.paused END,
        version = EXCLUDED.version, updated_at = clock_timestamp()
    RETURNING l.scope, l.name, l.max_running, l.rate_limit, l.rate_burst
), bucket AS (
    INSERT INTO {schema}.rate_bucket (scope, tokens)
    SELECT scope || ':' || name, coalesce(rate_burst, 1) FROM changed WHERE rate_limit IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT CASE WHEN max_running IS NOT NULL THEN {schema}.adopt_runs(scope || ':' || name) END FROM changed
