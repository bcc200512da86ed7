-- Frees up to `most` slots whose run is gone without having freed them (its job was deleted by hand, say). Each job is looked up
-- by itself, so that the statement costs what runs under caps, however many jobs there are. Runs that a cap should count and
-- does not, as they began while it was set, are given their slots.
WITH lost AS MATERIALIZED (
    SELECT s.job_id, s.lease FROM {schema}.cap_slot s
    WHERE s.job_id IS NOT NULL AND (SELECT j.lease FROM {schema}.job j WHERE j.id = s.job_id) IS DISTINCT FROM s.lease
    LIMIT %(most)s
    FOR UPDATE SKIP LOCKED
)
SELECT count(*) AS healed, {schema}.free_slots(array_agg(job_id), array_agg(lease), array_agg(''::text)) AS freed,
       {schema}.adopt_runs(NULL) AS adopted
FROM lost
