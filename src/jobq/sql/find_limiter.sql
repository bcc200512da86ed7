-- What is set for a tenant, queue, kind or key, slots of its cap that runs hold, and what a kind's decorator says. Always one row.
SELECT wanted.scope, wanted.name, l.weight, l.queue_weights, l.max_running, l.max_per_key, l.rate_limit, l.rate_period, l.rate_burst,
       coalesce(l.paused, false) AS paused,
       (SELECT count(*) FROM {schema}.cap_slot s
        WHERE s.scope = wanted.scope || ':' || wanted.name AND s.lease IS NOT NULL) AS slots_held,
       k.kind IS NOT NULL AS registered, k.queue AS kind_queue, k.priority AS kind_priority,
       k.max_attempts AS kind_max_attempts, k.timeout AS kind_timeout, k.max_per_key AS kind_max_per_key
FROM (SELECT %(scope)s::text AS scope, %(name)s::text AS name) wanted
LEFT JOIN {schema}.limiter l ON l.scope = wanted.scope AND l.name = wanted.name
LEFT JOIN {schema}.kind k ON wanted.scope = 'kind' AND k.kind = wanted.name
