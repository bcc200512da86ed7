-- Looks through up to `most` slots after one and deletes the free ones that nobody will take: of a concurrency key without queued jobs, and
-- those beyond the cap of a tenant, queue or kind. Should a claim want them after all, it makes them again. Comes back with the slot
-- reached and how many were deleted, or with no row after the last one.
WITH looked AS MATERIALIZED (
    SELECT s.scope, s.n, s.lease FROM {schema}.cap_slot s
    WHERE (s.scope, s.n) > (%(scope)s, %(n)s) ORDER BY s.scope, s.n LIMIT %(most)s
), unused AS MATERIALIZED (
    SELECT l.scope, l.n FROM looked l
    WHERE l.lease IS NULL AND CASE WHEN l.scope LIKE 'key:%%'
        THEN (SELECT j.id FROM {schema}.job j WHERE j.concurrency_key = substr(l.scope, 5) AND j.status = 'QUEUED' LIMIT 1) IS NULL
        ELSE l.n >= coalesce((SELECT r.max_running FROM {schema}.limiter r
                              WHERE r.scope = split_part(l.scope, ':', 1) AND r.name = substr(l.scope, strpos(l.scope, ':') + 1)), 0) END
), locked AS MATERIALIZED (
    SELECT s.scope, s.n FROM unused u, LATERAL (
        SELECT t.scope, t.n FROM {schema}.cap_slot t
        WHERE t.scope = u.scope AND t.n = u.n AND t.lease IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED) s
), gone AS (
    DELETE FROM {schema}.cap_slot s
    WHERE s.scope = ANY (ARRAY(SELECT scope FROM locked)) AND ((s.scope, s.n) IN (SELECT scope, n FROM locked)) IS TRUE
    RETURNING s.n
)
SELECT scope, n, (SELECT count(*) FROM gone) AS deleted FROM looked ORDER BY scope DESC, n DESC LIMIT 1
