-- One job without keys: a plain INSERT. What the caller leaves open comes from the kind, then from the setting.
INSERT INTO {schema}.job (kind, queue, tenant, priority, status, payload, max_attempts, timeout, created_at, run_at, ready_at,
                          concurrency_key, tags, meta)
SELECT %(kind)s, coalesce(%(queue)s, k.queue, 'default'), %(tenant)s, coalesce(%(priority)s, k.priority, 0),
       CASE WHEN t.due > t.stamp THEN 'SCHEDULED' ELSE 'QUEUED' END, %(payload)s::jsonb,
       coalesce(%(max_attempts)s, k.max_attempts, %(default_max_attempts)s), coalesce(%(timeout)s, k.timeout, %(default_timeout)s),
       t.stamp, t.due, CASE WHEN t.due > t.stamp THEN NULL ELSE t.stamp END,
       %(concurrency_key)s, %(tags)s::text[], %(meta)s::jsonb
FROM (SELECT stamp, greatest(coalesce(%(run_at)s::timestamptz, stamp + make_interval(secs => %(delay)s)), stamp) AS due
      FROM (SELECT clock_timestamp() AS stamp) c) t
LEFT JOIN {schema}.kind k ON k.kind = %(kind)s
RETURNING id, status, queue, tenant, priority, run_at
