-- $1 definitions. The ms until the next saga of these is due; no row, or NULL, when none will be.

SELECT (EXTRACT(epoch FROM min(next.wake_at) - clock_timestamp()) * 1000)::float8::text AS ms
FROM unnest($1::text::text[]) AS wanted (definition) CROSS JOIN LATERAL (
  (SELECT wake_at FROM {{sagas}} AS saga
   WHERE saga.definition = wanted.definition AND wake_at IS NOT NULL AND runner IS NULL AND held_reason IS NULL
   ORDER BY wake_at LIMIT 1)
  UNION ALL
  (SELECT wake_at FROM {{sagas}} AS saga
   WHERE saga.definition = wanted.definition AND wake_at IS NOT NULL AND runner IS NOT NULL AND held_reason IS NULL
   ORDER BY wake_at LIMIT 1)
) AS next
