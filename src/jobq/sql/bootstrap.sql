-- What migrating itself needs: which migrations were applied, and the oldest client that still works with them.
-- (CREATE SCHEMA IF NOT EXISTS demands CREATE on the database even where the schema exists.)
DO $bootstrap$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {schema_text}) THEN
        CREATE SCHEMA {schema};
    END IF;
END $bootstrap$;
CREATE TABLE IF NOT EXISTS {schema}.migration (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE {schema}.migration IS 'Migrations that were applied.';
CREATE TABLE IF NOT EXISTS {schema}.compatibility (
    only_row      boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    oldest_client integer NOT NULL
);
COMMENT ON TABLE {schema}.compatibility IS 'The oldest client (by its newest migration) that may use this schema.';
INSERT INTO {schema}.compatibility (oldest_client) VALUES (1) ON CONFLICT DO NOTHING;
