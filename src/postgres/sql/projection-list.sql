-- All checkpoints, or those of a log ($1), the furthest behind first.

SELECT {{checkpoint}} AS checkpoint, {{parked_count}} AS parked FROM {{projections}} AS projection
WHERE ($1::text IS NULL OR log = $1) AND retired_at IS NULL
ORDER BY position, name, version
