-- Defaults of the kinds this worker knows; rows that are already so are left alone.
INSERT INTO {schema}.kind AS k (kind, queue, priority, max_attempts, timeout, max_per_key)
SELECT kind, queue, priority, max_attempts, timeout, max_per_key
FROM unnest(%(kind)s::text[], %(queue)s::text[], %(priority)s::smallint[], %(max_attempts)s::integer[],
            %(timeout)s::double precision[], %(max_per_key)s::integer[])
     AS i(kind, queue, priority, max_attempts, timeout, max_per_key)
ORDER BY kind
ON CONFLICT (kind) DO UPDATE
SET queue = EXCLUDED.queue, priority = EXCLUDED.priority, max_attempts = EXCLUDED.max_attempts,
    timeout = EXCLUDED.timeout, max_per_key = EXCLUDED.max_per_key, updated_at = clock_timestamp()
WHERE (k.queue, k.priority, k.max_attempts, k.timeout, k.max_per_key)
    IS DISTINCT FROM (EXCLUDED.queue, EXCLUDED.priority, EXCLUDED.max_attempts, EXCLUDED.timeout, EXCLUDED.max_per_key)
