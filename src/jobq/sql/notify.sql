-- Wake-up messages (jobq/wakeup.py) that leave with the caller's commit.
SELECT pg_notify({channel}, message) FROM unnest(%(messages)s::text[]) AS message
