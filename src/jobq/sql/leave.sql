-- A worker that ends takes its row with it, and those of workers that were killed.
DELETE FROM {schema}.worker WHERE id = %(id)s OR expires_at < clock_timestamp() - interval '1 hour'
