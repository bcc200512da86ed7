-- Deletes the slots of up to `most` concurrency keys that are not in use: none is held, and no job of the key is queued. All
-- slots of a key or none, so that a claim that is about to take one keeps them all.
WITH idle AS MATERIALIZED (
    SELECT s.scope FROM {schema}.cap_slot s
    WHERE s.scope LIKE 'key:%%'
    GROUP BY s.scope
    HAVING count(s.lease) = 0
       AND (SELECT j.id FROM {schema}.job j WHERE j.concurrency_key = substr(s.scope, 5) AND j.status = 'QUEUED' LIMIT 1) IS NULL
    LIMIT %(most)s
), locked AS MATERIALIZED (
    SELECT s.scope FROM {schema}.cap_slot s
    WHERE s.scope = ANY (ARRAY(SELECT scope FROM idle)) AND s.lease IS NULL
    FOR UPDATE SKIP LOCKED
), whole AS (
    SELECT s.scope FROM {schema}.cap_slot s
    WHERE s.scope = ANY (ARRAY(SELECT scope FROM idle))
    GROUP BY s.scope
    HAVING count(*) = (SELECT count(*) FROM locked WHERE locked.scope = s.scope)
)
DELETE FROM {schema}.cap_slot s WHERE s.scope = ANY (ARRAY(SELECT scope FROM whole))
RETURNING s.scope
