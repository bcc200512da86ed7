-- Wake-up messages (jobq/wakeup.py).
SELECT pg_notify({channel}, message) FROM unnest(%(messages)s::text[]) AS message
