-- Archive partitions of both classes from yesterday to `days` ahead; comes back with how many were missing.
SELECT count(*) FILTER (WHERE {schema}.make_partition(class, day::date)) AS made
FROM unnest(ARRAY['done', 'dead']) AS class,
     generate_series((now() AT TIME ZONE 'UTC')::date - 1, (now() AT TIME ZONE 'UTC')::date + %(days)s::integer, interval '1 day') AS day
