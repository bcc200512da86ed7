-- Workers that are alive.
SELECT id, host, pid, version, queues, kinds, slots, express, running, draining, started_at, heartbeat_at, claimed_at,
       claim_loop_ok, finished_per_second
FROM {schema}.worker
WHERE expires_at > clock_timestamp()
ORDER BY started_at, id
