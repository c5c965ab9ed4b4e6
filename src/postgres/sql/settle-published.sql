-- $1 shard, $2 epoch, $3 text of an array of sequences: all of them are published.
--
-- The fence locks the term's row for the length of the statement: one that waits on a takeover finds, when it goes on,
-- that the epoch has passed, and changes nothing. Answers whether the term still holds, and how many it changed.

WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > clock_timestamp() FOR SHARE
), changed AS (
  UPDATE {{outbox}} SET state = 'published', published_at = clock_timestamp(), lease = NULL, locked_at = NULL
  WHERE sequence = ANY ($3::text::bigint[]) AND state = 'ready' AND EXISTS (SELECT 1 FROM term)
  RETURNING 1
)
SELECT (SELECT count(*) FROM term)::text, (SELECT count(*) FROM changed)::text
