-- The tenants, queues, kinds or keys for which something is set, kinds that workers know, and the names in `also`: by name, after one.
WITH named AS (
    SELECT l.name FROM {schema}.limiter l
    WHERE l.scope = %(scope)s AND l.name > %(after)s
      AND (l.paused OR num_nonnulls(l.weight, l.queue_weights, l.max_running, l.max_per_key, l.rate_limit) > 0)
    UNION
    SELECT k.kind FROM {schema}.kind k WHERE %(scope)s = 'kind' AND k.kind > %(after)s
    UNION
    SELECT a.name FROM unnest(%(also)s::text[]) AS a(name) WHERE a.name COLLATE "C" > %(after)s
    ORDER BY name
    LIMIT %(most)s
)
SELECT %(scope)s::text AS scope, named.name, l.weight, l.queue_weights, l.max_running, l.max_per_key, l.rate_limit, l.rate_period,
       l.rate_burst, coalesce(l.paused, false) AS paused,
       (SELECT count(*) FROM {schema}.cap_slot s
        WHERE s.scope = %(scope)s || ':' || named.name AND s.lease IS NOT NULL) AS slots_held,
       k.kind IS NOT NULL AS registered, k.queue AS kind_queue, k.priority AS kind_priority,
       k.max_attempts AS kind_max_attempts, k.timeout AS kind_timeout, k.max_per_key AS kind_max_per_key
FROM named
LEFT JOIN {schema}.limiter l ON l.scope = %(scope)s AND l.name = named.name
LEFT JOIN {schema}.kind k ON %(scope)s = 'kind' AND k.kind = named.name
ORDER BY named.name
