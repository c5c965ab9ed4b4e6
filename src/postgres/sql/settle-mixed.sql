-- Any settlements, of events in any state. $1 shard, $2 epoch, then text of arrays, one element per event: $3 event ids,
-- $4 what becomes of it (published, retrying, dead, held, ready), $5 attempts, $6 milliseconds until the next try,
-- $7 the error.
--
-- `held` is for one that was found to be blocked, `ready` for one that is due and has its turn behind ready ones. Fenced
-- like settle-published.sql. Returns whether the term still holds, and the ids of those it changed. {{unlocked}} passes
-- over rows that somebody has locked, for what need not be written now.

WITH term AS (
  SELECT 1 FROM {{terms}}
  WHERE shard = $1::text::int AND epoch = $2::text::bigint AND expires_at > clock_timestamp() FOR SHARE
), settled AS (
  SELECT id::uuid, becomes, attempts::int, after::float8, error
  FROM unnest($3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[], $7::text::text[])
    AS event (id, becomes, attempts, after, error)
), changed AS (
  UPDATE {{outbox}} event SET
    state = settled.becomes,
    attempts = settled.attempts,
    available_at = CASE WHEN settled.becomes = 'retrying'
      THEN clock_timestamp() + settled.after * interval '1 millisecond' END,
    published_at = CASE WHEN settled.becomes = 'published' THEN clock_timestamp() END,
    last_error = CASE WHEN settled.becomes = 'published' THEN NULL ELSE COALESCE(settled.error, event.last_error) END,
    lease = NULL,
    locked_at = NULL
  FROM settled
  WHERE event.event_id = settled.id AND event.state NOT IN ('published', 'dead') AND EXISTS (SELECT 1 FROM term){{unlocked}}
  RETURNING event.event_id
)
SELECT (SELECT count(*) FROM term)::text, (SELECT string_agg(event_id::text, ',') FROM changed)
