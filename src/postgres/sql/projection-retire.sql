-- Ends a projection for good: the row stays, so that nobody begins it anew over a table that is full. $1 name, $2 version,
-- $3 by, $4 note. No row: there was none.

WITH retired AS (
  UPDATE {{projections}} SET retired_at = clock_timestamp(), problem = NULL
  WHERE name = $1 AND version = $2::text::int AND retired_at IS NULL
  RETURNING name
), parked AS (
  DELETE FROM {{parked}} WHERE name = $1 AND version = $2::text::int AND EXISTS (SELECT FROM retired)
  RETURNING position
), keys AS (
  DELETE FROM {{keys}} WHERE name = $1 AND version = $2::text::int AND EXISTS (SELECT FROM retired)
), audited AS (
  INSERT INTO {{audit}} (name, version, action, by, note, positions)
  SELECT $1, $2::text::int, 'retire', $3, $4, COALESCE((SELECT array_agg(position ORDER BY position) FROM parked), '{}')
  FROM retired
)
SELECT name FROM retired
