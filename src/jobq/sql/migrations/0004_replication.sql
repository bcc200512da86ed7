-- Every table says how its rows are told apart, so that a publication of all tables hinders nothing; lanes whose names hold
-- newlines have tokens of their own.

-- 16 hex digits that stand for a lane in wake-up messages: names stay private, messages small. A newline parts the fields,
-- one within a field is escaped. Python computes the same (jobq/wakeup.py).
CREATE OR REPLACE FUNCTION {schema}.lane_token(queue text, tenant text, priority smallint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN left(md5(replace(replace(queue, '\', '\\'), E'\n', '\n') || E'\n' || replace(replace(tenant, '\', '\\'), E'\n', '\n')
                || E'\n' || priority::text), 16);

-- Makes the partition of one class and UTC day. Apart and then attached: CREATE ... PARTITION OF would lock
-- out completions for as long as anybody reads the parent. SECURITY DEFINER: a runtime role owns nothing. Its rows have no key, so
-- replication tells them apart by all columns.
CREATE OR REPLACE FUNCTION {schema}.make_partition(class text, day date) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, YMD' AS $function$
DECLARE
    parent text := 'job_archive_' || class;
    leaf   text := parent || to_char(day, '"_"YYYYMMDD');
BEGIN
    IF class NOT IN ('done', 'dead') THEN
        RAISE EXCEPTION 'class must be done or dead';
    END IF;
    IF to_regclass(format('%I.%I', {schema_text}, leaf)) IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended({schema_text} || '.partition', 0));
    -- to_regclass would answer from a cache that a wait for an advisory lock does not renew.
    IF EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = {schema_text} AND c.relname = leaf) THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %1$I.%2$I (LIKE %1$I.%3$I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', {schema_text}, leaf, parent);
    EXECUTE format('ALTER TABLE %1$I.%2$I REPLICA IDENTITY FULL', {schema_text}, leaf);
    EXECUTE format('ALTER TABLE %1$I.%2$I ADD CONSTRAINT bounds CHECK (class = %4$L AND finished_at IS NOT NULL AND finished_at >= %5$L AND finished_at < %6$L)',
                   {schema_text}, leaf, parent, class, day::timestamptz, (day + 1)::timestamptz);
    EXECUTE format('ALTER TABLE %1$I.%3$I ATTACH PARTITION %1$I.%2$I FOR VALUES FROM (%4$L) TO (%5$L)',
                   {schema_text}, leaf, parent, day::timestamptz, (day + 1)::timestamptz);
    EXECUTE format('ALTER TABLE %1$I.%2$I DROP CONSTRAINT bounds', {schema_text}, leaf);
    RETURN true;
END $function$;

ALTER TABLE ONLY {schema}.job_archive REPLICA IDENTITY FULL;
ALTER TABLE ONLY {schema}.job_archive_done REPLICA IDENTITY FULL;
ALTER TABLE ONLY {schema}.job_archive_dead REPLICA IDENTITY FULL;
DO $partitions$
DECLARE
    leaf record;
BEGIN
    FOR leaf IN
        SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = {schema_text} AND c.relkind = 'r' AND c.relname ~ '^job_archive_(done|dead)_[0-9]+$'
    LOOP
        EXECUTE format('ALTER TABLE %I.%I REPLICA IDENTITY FULL', {schema_text}, leaf.relname);
    END LOOP;
END $partitions$;
