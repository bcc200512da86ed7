-- Live jobs by queue and status. Costs a scan of the live rows: callers cache it (jobq.api.gauges).
SELECT queue, status, count(*) AS jobs,
       extract(epoch FROM clock_timestamp() - min(ready_at) FILTER (WHERE status = 'QUEUED'))::double precision AS oldest_queued,
       extract(epoch FROM clock_timestamp() - min(started_at) FILTER (WHERE status = 'RUNNING'))::double precision AS oldest_running
FROM {schema}.job
GROUP BY queue, status
