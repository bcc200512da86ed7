-- What is paused: by scope how many, and the first of their names.
SELECT scope, count(*) AS paused, (array_agg(name ORDER BY name))[:%(most)s] AS names
FROM {schema}.limiter
WHERE paused AND restricts
GROUP BY scope
ORDER BY scope
