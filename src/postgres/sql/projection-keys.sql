-- The keys that have parked events, and how many events there are. $1 name, $2 version.

SELECT count(*)::text AS count, COALESCE(json_agg(DISTINCT key) FILTER (WHERE key IS NOT NULL), '[]')::text AS keys
FROM {{parked}} WHERE name = $1 AND version = $2::text::int
