-- How many sagas of each type wait for a person, held ones and failed ones apart, and for how many seconds the first. Their index
-- does not know the type: rows are read.

SELECT CASE WHEN ended_at IS NULL THEN 'held' ELSE 'failed' END AS part, saga_type AS of, count(*)::text AS count,
  EXTRACT(EPOCH FROM clock_timestamp() - min(attention_at))::float8::text AS seconds
FROM (SELECT saga_type, ended_at, attention_at FROM {{sagas}} AS saga WHERE attention_at IS NOT NULL
  ORDER BY attention_at) AS waiting
GROUP BY 1, 2
