-- What the reaper must know before it judges leases: the clock, how long the server is up, whether any lease ended.
SELECT extract(epoch FROM now())::double precision AS now,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision AS uptime,
       EXISTS (SELECT FROM {schema}.job WHERE status = 'RUNNING' AND lease_until > %(floor)s AND lease_until <= now()) AS expired
