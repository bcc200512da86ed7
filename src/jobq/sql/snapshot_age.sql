-- Seconds since the oldest snapshot that holds back cleaning was taken, as far as this role may see.
SELECT coalesce(extract(epoch FROM clock_timestamp() - min(xact_start)), 0)::double precision AS age
FROM pg_catalog.pg_stat_activity
WHERE backend_xmin IS NOT NULL AND datname = current_database() AND pid <> pg_backend_pid()
