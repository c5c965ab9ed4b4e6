-- $1 ms. How many sagas of each definition have been due for so long; of each ten thousand at most.
-- From one definition to the next by the index: those that sleep, a million of them perhaps, are not looked at.

WITH RECURSIVE known (definition) AS (
  (SELECT definition FROM {{sagas}} AS saga WHERE wake_at IS NOT NULL AND runner IS NULL ORDER BY definition LIMIT 1)
  UNION ALL
  SELECT (SELECT saga.definition FROM {{sagas}} AS saga
    WHERE wake_at IS NOT NULL AND runner IS NULL AND saga.definition > known.definition ORDER BY saga.definition LIMIT 1)
  FROM known WHERE known.definition IS NOT NULL
), claimed (definition) AS (
  (SELECT definition FROM {{sagas}} AS saga WHERE wake_at IS NOT NULL AND runner IS NOT NULL ORDER BY definition LIMIT 1)
  UNION ALL
  SELECT (SELECT saga.definition FROM {{sagas}} AS saga
    WHERE wake_at IS NOT NULL AND runner IS NOT NULL AND saga.definition > claimed.definition
    ORDER BY saga.definition LIMIT 1)
  FROM claimed WHERE claimed.definition IS NOT NULL
), overdue AS (
  SELECT known.definition FROM known CROSS JOIN LATERAL (
    SELECT FROM {{sagas}} AS saga WHERE saga.definition = known.definition AND runner IS NULL AND held_reason IS NULL
      AND wake_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond' LIMIT 10000) AS due
  UNION ALL
  SELECT claimed.definition FROM claimed CROSS JOIN LATERAL (
    SELECT FROM {{sagas}} AS saga WHERE saga.definition = claimed.definition AND runner IS NOT NULL AND held_reason IS NULL
      AND wake_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond' LIMIT 10000) AS due
)
SELECT definition, count(*)::text AS count FROM overdue GROUP BY definition
