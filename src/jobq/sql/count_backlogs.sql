-- The ten largest backlogs by tenant.
SELECT tenant, count(*) AS jobs
FROM {schema}.job
WHERE status = 'QUEUED'
GROUP BY tenant
ORDER BY jobs DESC, tenant
LIMIT 10
