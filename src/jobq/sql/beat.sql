-- A worker says that it lives; its row expires by itself three beats after the last one.
INSERT INTO {schema}.worker AS w (id, host, pid, version, queues, kinds, slots, express, running, draining,
                                claim_loop_ok, finished_per_second, run_seconds, claimed_at, expires_at)
VALUES (%(id)s, %(host)s, %(pid)s, %(version)s, %(queues)s::text[], %(kinds)s::text[], %(slots)s, %(express)s, %(running)s,
        %(draining)s, %(claim_loop_ok)s, %(finished_per_second)s, %(run_seconds)s, clock_timestamp() - make_interval(secs => %(claimed_ago)s),
        clock_timestamp() + make_interval(secs => %(ttl)s))
ON CONFLICT (id) DO UPDATE
SET running = EXCLUDED.running, draining = EXCLUDED.draining, claim_loop_ok = EXCLUDED.claim_loop_ok,
    finished_per_second = EXCLUDED.finished_per_second, run_seconds = EXCLUDED.run_seconds, claimed_at = EXCLUDED.claimed_at,
    heartbeat_at = clock_timestamp(), expires_at = EXCLUDED.expires_at
