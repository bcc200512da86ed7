-- What a claim took whose answer was lost: the jobs that run under its lease (in the order of the one index on running jobs).
SELECT id FROM {schema}.job WHERE status = 'RUNNING' AND lease = %(lease)s ORDER BY lease_until, id
