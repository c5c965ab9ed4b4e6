-- $1 retention in ms, $2 how many at most. Forgets what was run and undone so long ago.

DELETE FROM {{barriers}} WHERE key IN (
  SELECT key FROM {{barriers}} WHERE created_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY created_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED)
