-- The first of each key that may be tried now. $1 name, $2 version, $3 how many. One that has become the first because
-- those before it are gone has no time, and is due at once.

SELECT {{event}} AS event, message FROM {{parked}} AS parked
WHERE name = $1 AND version = $2::text::int AND (next_at IS NULL OR next_at <= clock_timestamp())
  AND NOT EXISTS (
    SELECT FROM {{parked}} AS earlier
    WHERE earlier.name = $1 AND earlier.version = $2::text::int AND earlier.key = parked.key AND earlier.position < parked.position
  )
ORDER BY position
LIMIT $3::text::int
