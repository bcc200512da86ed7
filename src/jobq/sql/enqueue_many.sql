-- Many jobs, with or without keys, in the order given. A key is inserted before its job, in key order, so that
-- rivals wait for one another instead of deadlocking (all retained keys first: hence the count); a job whose key
-- was taken is not inserted, and resolve_keys.sql reads the winner. Ids are drawn before the join, which keeps no order.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS stamp
), input AS MATERIALIZED (
    SELECT i.ord, i.id, i.kind, coalesce(i.queue, k.queue, 'default') AS queue, i.tenant,
           coalesce(i.priority, k.priority, 0::smallint) AS priority, i.payload::jsonb AS payload,
           coalesce(i.max_attempts, k.max_attempts, %(default_max_attempts)s) AS max_attempts,
           coalesce(i.timeout, k.timeout, %(default_timeout)s) AS timeout, c.stamp,
           greatest(coalesce(i.run_at, c.stamp + make_interval(secs => i.delay)), c.stamp) AS due,
           i.idempotency_key, i.unique_key, i.concurrency_key, i.tags, i.meta
    FROM (
        SELECT nextval({sequence}) AS id, kind, queue, tenant, priority, payload, max_attempts, timeout, delay, run_at,
               idempotency_key, unique_key, concurrency_key, tags, meta, ord
        FROM unnest(%(kind)s::text[], %(queue)s::text[], %(tenant)s::text[], %(priority)s::smallint[], %(payload)s::text[],
                    %(max_attempts)s::integer[], %(timeout)s::double precision[], %(delay)s::double precision[],
                    %(run_at)s::timestamptz[], %(idempotency_key)s::text[], %(unique_key)s::text[],
                    %(concurrency_key)s::text[], %(tags)s::text[], %(meta)s::text[])
             WITH ORDINALITY AS u(kind, queue, tenant, priority, payload, max_attempts, timeout, delay, run_at,
                                  idempotency_key, unique_key, concurrency_key, tags, meta, ord)
    ) i
    CROSS JOIN clock c
    LEFT JOIN {schema}.kind k ON k.kind = i.kind
), retained AS (
    INSERT INTO {schema}.key (tenant, scope, key, job_id, fingerprint)
    SELECT tenant, 'retained', idempotency_key, id, {schema}.fingerprint(kind, payload)
    FROM (SELECT DISTINCT ON (tenant, idempotency_key) tenant, idempotency_key, id, kind, payload
          FROM input WHERE idempotency_key IS NOT NULL ORDER BY tenant, idempotency_key, ord) wanted
    ORDER BY tenant, idempotency_key
    ON CONFLICT DO NOTHING
    RETURNING job_id
), live AS (
    INSERT INTO {schema}.key (tenant, scope, key, job_id)
    SELECT tenant, 'live', unique_key, id
    FROM (SELECT DISTINCT ON (tenant, unique_key) tenant, unique_key, id
          FROM input
          WHERE unique_key IS NOT NULL AND (SELECT count(*) FROM retained) >= 0
            AND (idempotency_key IS NULL OR id IN (SELECT job_id FROM retained))
          ORDER BY tenant, unique_key, ord) wanted
    ORDER BY tenant, unique_key
    ON CONFLICT DO NOTHING
    RETURNING job_id
), created AS (
    INSERT INTO {schema}.job (id, kind, queue, tenant, priority, status, payload, max_attempts, timeout, created_at, run_at,
                              ready_at, concurrency_key, idempotency_key, unique_key, tags, meta)
    SELECT id, kind, queue, tenant, priority, CASE WHEN due > stamp THEN 'SCHEDULED' ELSE 'QUEUED' END, payload,
           max_attempts, timeout, stamp, due, CASE WHEN due > stamp THEN NULL ELSE stamp END, concurrency_key,
           idempotency_key, unique_key, tags::text[], meta::jsonb
    FROM input
    WHERE (idempotency_key IS NULL OR id IN (SELECT job_id FROM retained))
      AND (unique_key IS NULL OR id IN (SELECT job_id FROM live))
    ORDER BY ord
    RETURNING id, status
)
SELECT i.id, c.status, i.queue, i.tenant, i.priority, i.due AS run_at
FROM input i LEFT JOIN created c ON c.id = i.id
ORDER BY i.ord
