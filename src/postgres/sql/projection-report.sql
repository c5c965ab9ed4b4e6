-- Why it stands still ($4, or NULL), and whether it has been built ($5). $1 name, $2 version, $3 epoch.

UPDATE {{projections}}
SET problem = $4, built_at = CASE WHEN $5::text::boolean THEN COALESCE(built_at, clock_timestamp()) ELSE built_at END
WHERE name = $1 AND version = $2::text::int AND epoch = $3::text::bigint AND retired_at IS NULL
