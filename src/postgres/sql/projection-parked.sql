-- A page of parked events. $1 name, $2 version, $3 key, $4 only those that failed, $5 to $7 the last one seen (name,
-- version, position), $8 how many. NULL: whatever.

SELECT {{event}} AS event FROM {{parked}} AS parked
WHERE ($1::text IS NULL OR (name = $1 AND version = $2::text::int))
  AND ($3::text IS NULL OR key = $3)
  AND (NOT $4::text::boolean OR attempts > 0)
  AND ($5::text IS NULL OR (name, version, position) > ($5, $6::text::int, $7::text::bigint))
ORDER BY name, version, position
LIMIT $8::text::int
