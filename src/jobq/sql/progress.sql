-- The latest progress of runs that still hold; a lost lease writes nothing.
UPDATE {schema}.job
SET progress = in_progress::jsonb
FROM unnest(%(ids)s::bigint[], %(leases)s::bigint[], %(progress)s::text[]) AS i(in_id, in_lease, in_progress)
WHERE id = ANY (%(ids)s::bigint[]) AND id = in_id AND lease = in_lease
RETURNING id
