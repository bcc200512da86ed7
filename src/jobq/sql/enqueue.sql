-- One job without keys. What the caller leaves open comes from the kind, then from the setting. By position: looking
-- fourteen parameters up by name takes a twelfth of the whole enqueue.
SELECT {schema}.insert_job(%s, %s, %s, %s, %s::jsonb, %s, %s, %s, %s, %s, %s::text[], %s::jsonb, %s, %s)
