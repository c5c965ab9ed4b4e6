-- A person makes parked events due now. $1 name, $2 version, $3 positions, $4 by, $5 note. Returns those that were there.
-- One that waits behind another has no time, and keeps none: it is due with the one before it gone.

WITH due AS (
  UPDATE {{parked}} SET next_at = CASE WHEN next_at IS NOT NULL THEN clock_timestamp() END
  WHERE name = $1 AND version = $2::text::int AND position = ANY ($3::text::bigint[])
  RETURNING position
), audited AS (
  INSERT INTO {{audit}} (name, version, action, by, note, positions)
  SELECT $1, $2::text::int, 'retry', $4, $5, array_agg(position ORDER BY position) FROM due HAVING count(*) > 0
)
SELECT position::text AS position FROM due ORDER BY due.position
