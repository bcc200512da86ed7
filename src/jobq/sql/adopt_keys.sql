-- An idempotency key was free, but its job's unique key was not: the key then stands for the live job.
UPDATE {schema}.key k SET job_id = i.live_id
FROM unnest(%(tenant)s::text[], %(idempotency_key)s::text[], %(id)s::bigint[], %(live_id)s::bigint[])
     AS i(tenant, idempotency_key, id, live_id)
WHERE k.tenant = i.tenant AND k.scope = 'retained' AND k.key = i.idempotency_key AND k.job_id = i.id
