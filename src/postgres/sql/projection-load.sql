-- One checkpoint, with the number of parked events. $1 name, $2 version.

SELECT {{checkpoint}} AS checkpoint, {{parked_count}} AS parked FROM {{projections}} AS projection
WHERE name = $1 AND version = $2::text::int AND retired_at IS NULL
