-- Every run there has been, each with what may limit it, from its claim to its end in microseconds since 1970: those that ended
-- DONE, and the earlier ones of each job.
SELECT tenant, queue, kind, concurrency_key, (extract(epoch FROM began) * 1000000)::bigint, (extract(epoch FROM ended) * 1000000)::bigint
FROM (SELECT tenant, queue, kind, concurrency_key, started_at AS began, finished_at AS ended
      FROM jobq.jobs WHERE status = 'DONE'
      UNION ALL
      SELECT tenant, queue, kind, concurrency_key, (past ->> 'startedAt')::timestamptz, (past ->> 'endedAt')::timestamptz
      FROM jobq.jobs, jsonb_array_elements(history) AS past) AS run
