-- What the reaper must know before it judges leases: the clock, how long the server is up, whether any lease ended, which of those
-- that end soon belong to rows that are locked (no owner can extend those), and whether one ends later than any worker extends it:
-- the clock was set back. That it comes back at all shows that leases can be extended: `writable` needs the same lock on the table.
WITH writable AS (
    UPDATE {schema}.job SET progress = progress WHERE false RETURNING id
), ending AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE status = 'RUNNING' AND lease_until > %(floor)s AND lease_until <= now() + make_interval(secs => %(lease_seconds)s / 4)
    ORDER BY lease_until, id
    LIMIT 200
), free AS MATERIALIZED (
    SELECT id AS free_id FROM {schema}.job WHERE id = ANY (ARRAY(SELECT id FROM ending)) FOR UPDATE SKIP LOCKED
)
SELECT extract(epoch FROM now())::double precision AS now,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision AS uptime,
       EXISTS (SELECT FROM {schema}.job WHERE status = 'RUNNING' AND lease_until > %(floor)s AND lease_until <= now()) AS expired,
       ARRAY(SELECT id FROM ending WHERE id NOT IN (SELECT free_id FROM free)) AS locked,
       EXISTS (SELECT FROM {schema}.job
               WHERE status = 'RUNNING' AND lease_until > now() + make_interval(secs => %(lease_seconds)s + 5)) AS beyond
FROM (SELECT count(*) FROM writable) w
