-- A person removes parked events for good. $1 name, $2 version, $3 positions, $4 by, $5 note. Returns those that were there.

WITH gone AS (
  DELETE FROM {{parked}} WHERE name = $1 AND version = $2::text::int AND position = ANY ($3::text::bigint[])
  RETURNING position
), audited AS (
  INSERT INTO {{audit}} (name, version, action, by, note, positions)
  SELECT $1, $2::text::int, 'skip', $4, $5, array_agg(position ORDER BY position) FROM gone HAVING count(*) > 0
)
SELECT position::text AS position FROM gone ORDER BY gone.position
