-- Finished jobs of the dead class by status, by index alone.
SELECT status, count(*) AS jobs FROM {schema}.job_archive_dead GROUP BY status
