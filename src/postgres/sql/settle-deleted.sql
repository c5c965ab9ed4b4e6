-- As settle-published.sql, for an outbox whose events are removed once they are published.

WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > clock_timestamp() FOR SHARE
), changed AS (
  DELETE FROM {{outbox}}
  WHERE event_id = ANY ((SELECT $3::text::uuid[])::uuid[]) AND state || '' = 'ready' AND EXISTS (SELECT 1 FROM term)
  RETURNING 1
)
SELECT (SELECT count(*) FROM term)::text, (SELECT count(*) FROM changed)::text
