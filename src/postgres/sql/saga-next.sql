-- $1 definitions, $2 whether only of those that a runner has, $3 since when those that wait may be due, $4 since when those
-- that a runner has, $5 how many ms ahead to look: bounds, or NULL. The ms until the next saga of these is due, NULL when none
-- is found; and over how many entries of the indexes the look passed.

WITH now AS MATERIALIZED (
  SELECT clock_timestamp() AS now, {{entries}} AS entries
), ahead AS (
  SELECT COALESCE(now + $5::text::float8 * interval '1 millisecond', 'infinity') AS until FROM now
), next AS MATERIALIZED (
  SELECT min(one.wake_at) AS wake_at
  FROM unnest($1::text::text[]) AS wanted (definition) CROSS JOIN LATERAL (
    (SELECT wake_at FROM {{sagas}} AS saga
     WHERE saga.definition = wanted.definition AND runner IS NULL AND held_reason IS NULL AND $2::text <> 'true'
       AND wake_at >= COALESCE($3::text::timestamptz, '-infinity') AND wake_at <= (SELECT until FROM ahead)
     ORDER BY wake_at LIMIT 1)
    UNION ALL
    (SELECT wake_at FROM {{sagas}} AS saga
     WHERE saga.definition = wanted.definition AND runner IS NOT NULL AND held_reason IS NULL
       AND wake_at >= COALESCE($4::text::timestamptz, '-infinity') AND wake_at <= (SELECT until FROM ahead)
     ORDER BY wake_at LIMIT 1)
  ) AS one
)
SELECT (EXTRACT(epoch FROM next.wake_at - clock_timestamp()) * 1000)::float8::text AS ms,
  ({{entries}} - now.entries)::text AS passed
FROM now CROSS JOIN next
