-- One job without keys. What the caller leaves open comes from the kind, then from the setting.
SELECT {schema}.insert_job(%(kind)s, %(queue)s, %(tenant)s, %(priority)s, %(payload)s::jsonb, %(max_attempts)s, %(timeout)s,
                           %(delay)s, %(run_at)s, %(concurrency_key)s, %(tags)s::text[], %(meta)s::jsonb,
                           %(default_max_attempts)s, %(default_timeout)s)
