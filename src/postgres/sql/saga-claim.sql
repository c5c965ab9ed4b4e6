-- Claims sagas that are due, skipping what another is claiming or writing.
-- $1 definitions, $2 how many, $3 how many of those whose runner stopped without a word, $4 the token of this claim,
-- $5 the lease in ms, $6 since when those that wait may be due, $7 since when those that a runner has: hints, or NULL.
--
-- What was taken over comes apart from others: some that were taken over for the first time, or else one alone, so that one
-- that kills its runners takes no others with it. Returns each saga as JSON, whether it was taken over, and when it was due;
-- one row without a saga when there is none. With each row a time a second before this look, and over how many entries of
-- the indexes it passed: those of sagas that were claimed or have ended stay there while an old snapshot is open.

WITH now AS MATERIALIZED (
  SELECT clock_timestamp() AS now, {{entries}} AS entries
), fresh AS (
  SELECT one.* FROM unnest($1::text::text[]) AS wanted (definition) CROSS JOIN LATERAL (
    SELECT id, wake_at, true AS taken FROM {{sagas}} AS saga
    WHERE saga.definition = wanted.definition AND wake_at <= (SELECT now FROM now) AND runner IS NOT NULL
      AND held_reason IS NULL AND takeovers = 0 AND wake_at >= COALESCE($7::text::timestamptz, '-infinity')
    ORDER BY wake_at LIMIT $3::text::int FOR UPDATE SKIP LOCKED) AS one
  LIMIT $3::text::int
), again AS (
  SELECT one.* FROM unnest($1::text::text[]) AS wanted (definition) CROSS JOIN LATERAL (
    SELECT id, wake_at, true AS taken FROM {{sagas}} AS saga
    WHERE saga.definition = wanted.definition AND wake_at <= (SELECT now FROM now) AND runner IS NOT NULL
      AND held_reason IS NULL AND takeovers > 0 AND wake_at >= COALESCE($7::text::timestamptz, '-infinity')
    ORDER BY wake_at
    LIMIT CASE WHEN EXISTS (SELECT 1 FROM fresh) THEN 0 ELSE LEAST(1, $3::text::int) END
    FOR UPDATE SKIP LOCKED) AS one
  LIMIT 1
), room AS (
  SELECT CASE WHEN EXISTS (SELECT 1 FROM fresh) OR EXISTS (SELECT 1 FROM again) THEN 0 ELSE $2::text::int END AS places
), due AS (
  SELECT one.* FROM unnest($1::text::text[]) AS wanted (definition) CROSS JOIN LATERAL (
    SELECT id, wake_at, false AS taken FROM {{sagas}} AS saga
    WHERE saga.definition = wanted.definition AND wake_at <= (SELECT now FROM now) AND runner IS NULL
      AND held_reason IS NULL AND wake_at >= COALESCE($6::text::timestamptz, '-infinity')
    ORDER BY wake_at LIMIT (SELECT places FROM room) FOR UPDATE SKIP LOCKED) AS one
  ORDER BY one.wake_at LIMIT (SELECT places FROM room)
), chosen AS (
  SELECT * FROM fresh UNION ALL SELECT * FROM again UNION ALL SELECT * FROM due
), claimed AS (
  UPDATE {{sagas}} AS saga SET
    runner = $4::text::uuid, version = version + 1, takeovers = takeovers + CASE WHEN chosen.taken THEN 1 ELSE 0 END,
    wake_at = clock_timestamp() + $5::text::float8 * interval '1 millisecond', updated_at = clock_timestamp()
  FROM chosen WHERE saga.id = chosen.id
  RETURNING {{saga}} AS saga, chosen.taken AS taken, to_json(chosen.wake_at)::text AS due
)
SELECT claimed.saga, claimed.taken, claimed.due, to_json(now.now - interval '1 second')::text AS floor,
  ({{entries}} - now.entries)::text AS passed
FROM now LEFT JOIN claimed ON true
