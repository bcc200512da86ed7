-- Ids of jobs whose lease ended, oldest first.
SELECT id FROM {schema}.job
WHERE status = 'RUNNING' AND lease_until > %(floor)s AND lease_until <= now()
ORDER BY lease_until, id
LIMIT %(most)s
