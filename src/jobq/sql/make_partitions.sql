-- Archive partitions of both classes from yesterday to `days` ahead; comes back with how many were missing.
SELECT count(*) FILTER (WHERE {schema}.make_partition(class, (now() AT TIME ZONE 'UTC')::date + day)) AS made
FROM unnest(ARRAY['done', 'dead']) AS class,
     generate_series(-1, %(days)s::integer) AS day
