-- Weights that were set after a version of the limits, beside the version they have now: one row at least.
SELECT v.version, l.scope, l.name, l.weight, l.queue_weights::text
FROM {schema}.limiter_version v LEFT JOIN {schema}.limiter l ON l.version > %(after)s AND l.scope <> 'key'
