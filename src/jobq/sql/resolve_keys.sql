-- Which job a taken key stands for, and whether the request is the same. Status RETIRED: the key outlived its job.
SELECT i.ord, r.job_id AS retained_id, r.fingerprint = {schema}.fingerprint(i.kind, i.payload::jsonb) AS same, l.job_id AS live_id,
       coalesce(j.status, a.status, 'RETIRED') AS status
FROM unnest(%(ord)s::integer[], %(id)s::bigint[], %(kind)s::text[], %(tenant)s::text[], %(payload)s::text[],
            %(idempotency_key)s::text[], %(unique_key)s::text[])
     AS i(ord, id, kind, tenant, payload, idempotency_key, unique_key)
LEFT JOIN {schema}.key r ON r.tenant = i.tenant AND r.scope = 'retained' AND r.key = i.idempotency_key
LEFT JOIN {schema}.key l ON l.tenant = i.tenant AND l.scope = 'live' AND l.key = i.unique_key
LEFT JOIN {schema}.job j ON j.id = CASE WHEN r.job_id <> i.id OR l.job_id IS NULL THEN r.job_id ELSE l.job_id END
LEFT JOIN LATERAL (
    SELECT f.status FROM {schema}.job_archive f
    WHERE j.id IS NULL AND f.id = CASE WHEN r.job_id <> i.id OR l.job_id IS NULL THEN r.job_id ELSE l.job_id END LIMIT 1
) a ON true
ORDER BY i.ord
