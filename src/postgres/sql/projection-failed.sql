-- It failed again. $1 name, $2 version, $3 position, $4 error, $5 milliseconds until the next try.

UPDATE {{parked}}
SET attempts = attempts + 1, error = $4, next_at = clock_timestamp() + $5::text::float8 * interval '1 millisecond'
WHERE name = $1 AND version = $2::text::int AND position = $3::text::bigint
