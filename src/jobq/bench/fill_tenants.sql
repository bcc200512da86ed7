-- Jobs by number for many tenants, who take turns: as if each had enqueued one after the other.
INSERT INTO jobq.job (kind, tenant, ready_at)
SELECT 'noop', 'tenant-' || lpad((i %% %(tenants)s)::text, 6, '0'), clock_timestamp()
FROM generate_series(%(first)s::integer, %(last)s::integer) AS i
