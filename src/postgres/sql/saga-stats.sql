-- $1 the bound, $2 that of those whose rows are read. How many sagas of each definition are in which state, and for how many
-- seconds the first has been due, or has waited for a person. Each part is counted up to the bound, in the order of its own
-- index; `full`: there are more. `whole` is how many entries the index of a part had at the last ANALYZE.
-- From one definition to the next by the index, as in saga-overdue: it may hold a million of one.

WITH RECURSIVE idle (definition) AS (
  (SELECT definition FROM {{sagas}} AS saga WHERE wake_at IS NOT NULL AND runner IS NULL ORDER BY definition LIMIT 1)
  UNION ALL
  SELECT (SELECT saga.definition FROM {{sagas}} AS saga
    WHERE wake_at IS NOT NULL AND runner IS NULL AND saga.definition > idle.definition ORDER BY saga.definition LIMIT 1)
  FROM idle WHERE idle.definition IS NOT NULL
), claimed (definition) AS (
  (SELECT definition FROM {{sagas}} AS saga WHERE wake_at IS NOT NULL AND runner IS NOT NULL ORDER BY definition LIMIT 1)
  UNION ALL
  SELECT (SELECT saga.definition FROM {{sagas}} AS saga
    WHERE wake_at IS NOT NULL AND runner IS NOT NULL AND saga.definition > claimed.definition
    ORDER BY saga.definition LIMIT 1)
  FROM claimed WHERE claimed.definition IS NOT NULL
), undoing (definition) AS (
  (SELECT definition FROM {{sagas}} AS saga WHERE status = 'compensating' AND wake_at IS NOT NULL ORDER BY definition LIMIT 1)
  UNION ALL
  SELECT (SELECT saga.definition FROM {{sagas}} AS saga
    WHERE status = 'compensating' AND wake_at IS NOT NULL AND saga.definition > undoing.definition
    ORDER BY saga.definition LIMIT 1)
  FROM undoing WHERE undoing.definition IS NOT NULL
), waiting AS MATERIALIZED (
  SELECT saga_type, ended_at, attention_at FROM {{sagas}} AS saga WHERE attention_at IS NOT NULL
  ORDER BY attention_at LIMIT $2::text::int
), counts AS (
  SELECT 'idle' AS part, definition AS of, counted.* FROM idle CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(wake_at) AS first FROM (SELECT wake_at FROM {{sagas}} AS saga
      WHERE saga.definition = idle.definition AND wake_at IS NOT NULL AND runner IS NULL
      ORDER BY wake_at LIMIT $1::text::int) AS bounded) AS counted
  UNION ALL
  SELECT 'claimed', definition, counted.* FROM claimed CROSS JOIN LATERAL (
    SELECT count(*), min(wake_at) FROM (SELECT wake_at FROM {{sagas}} AS saga
      WHERE saga.definition = claimed.definition AND wake_at IS NOT NULL AND runner IS NOT NULL
      ORDER BY wake_at LIMIT $1::text::int) AS bounded) AS counted
  UNION ALL
  SELECT 'undoing', definition, counted.* FROM undoing CROSS JOIN LATERAL (
    SELECT count(*), NULL::timestamptz FROM (SELECT FROM {{sagas}} AS saga
      WHERE saga.definition = undoing.definition AND status = 'compensating' AND wake_at IS NOT NULL
      ORDER BY wake_at LIMIT $1::text::int) AS bounded) AS counted
  UNION ALL
  SELECT CASE WHEN ended_at IS NULL THEN 'held' ELSE 'failed' END, saga_type, count(*), min(attention_at)
  FROM waiting GROUP BY 1, 2
)
SELECT part, of, count::text AS count,
  EXTRACT(EPOCH FROM clock_timestamp() - first)::float8::text AS seconds,
  (CASE part WHEN 'idle' THEN count >= $1::text::bigint WHEN 'claimed' THEN count >= $1::text::bigint
    WHEN 'undoing' THEN count >= $1::text::bigint ELSE (SELECT count(*) FROM waiting) >= $2::text::bigint END) AS full,
  (SELECT GREATEST(class.reltuples, 0)::bigint::text FROM pg_class AS class WHERE class.oid = to_regclass(CASE part
    WHEN 'idle' THEN {{index_due}} WHEN 'claimed' THEN {{index_claimed}} WHEN 'undoing' THEN {{index_undoing}}
    ELSE {{index_attention}} END)) AS whole
FROM counts WHERE of IS NOT NULL
