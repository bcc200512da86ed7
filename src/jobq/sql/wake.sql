-- Wake-up messages (jobq/wakeup.py) in a transaction of their own. A hint need not outlive a crash of the server, so its
-- commit does not wait for the disk.
WITH hasty AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS commit
)
SELECT pg_notify({channel}, message) FROM hasty, unnest(%(messages)s::text[]) AS message
