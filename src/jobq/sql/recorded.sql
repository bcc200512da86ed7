-- Which of these runs have already ended by their own lease: after a lost answer, zero rows may be our own success.
-- Only partitions of the last days are looked at: no outcome waits longer for its answer.
SELECT a.id, a.lease, a.status
FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[]) AS i(in_id, in_lease)
JOIN {schema}.job_archive a ON a.id = i.in_id AND a.lease = i.in_lease
WHERE a.id = ANY (%(ids)s::bigint[]) AND a.finished_at BETWEEN now() - interval '7 days' AND now() + interval '1 hour'
