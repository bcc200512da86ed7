-- Live jobs by queue, status and priority. Costs a scan of the live rows: callers cache it (jobq.api.gauges).
SELECT queue, status, priority, count(*) AS jobs,
       count(*) FILTER (WHERE held_by LIKE 'kind:%%') AS held_for_kind, count(*) FILTER (WHERE held_by LIKE 'key:%%') AS held_for_key,
       count(*) FILTER (WHERE held_by LIKE 'unknown_kind:%%') AS held_for_unknown_kind,
       extract(epoch FROM clock_timestamp() - min(ready_at) FILTER (WHERE status = 'QUEUED'))::double precision AS oldest_queued,
       extract(epoch FROM clock_timestamp() - min(started_at) FILTER (WHERE status = 'RUNNING'))::double precision AS oldest_running
FROM {schema}.job
GROUP BY queue, status, priority
