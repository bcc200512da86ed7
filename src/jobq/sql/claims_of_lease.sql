-- What a claim took whose answer was lost: the jobs that run under its lease.
SELECT id FROM {schema}.job WHERE status = 'RUNNING' AND lease = %(lease)s ORDER BY id
