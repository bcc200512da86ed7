-- Which of these runs cannot be ended at once, since another transaction has locked what that would change: their job, its
-- live key or a slot. Waits for no row; a pair whose lease was lost does not come back.
WITH input AS (
    SELECT in_id, in_lease FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]) AS i(in_id, in_lease)
), mine AS MATERIALIZED (
    SELECT j.id AS mine_id, j.lease AS mine_lease FROM {schema}.job j JOIN input ON j.id = in_id AND j.lease = in_lease
    WHERE j.id = ANY (%(ids)s::bigint[])
), free_job AS MATERIALIZED (
    SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED
), free_key AS MATERIALIZED (
    SELECT job_id FROM {schema}.key WHERE scope = 'live' AND job_id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED
), free_slot AS MATERIALIZED (
    SELECT job_id, scope FROM {schema}.cap_slot WHERE job_id = ANY (%(ids)s::bigint[]) FOR UPDATE SKIP LOCKED
)
SELECT mine_id, mine_lease FROM mine
WHERE mine_id NOT IN (SELECT id FROM free_job)
   OR mine_id IN (SELECT job_id FROM {schema}.key WHERE scope = 'live' AND job_id = ANY (%(ids)s::bigint[])
                  EXCEPT SELECT job_id FROM free_key)
   OR mine_id IN (SELECT s.job_id FROM {schema}.cap_slot s
                  WHERE s.job_id = ANY (%(ids)s::bigint[]) AND (s.job_id, s.scope) NOT IN (SELECT job_id, scope FROM free_slot))
