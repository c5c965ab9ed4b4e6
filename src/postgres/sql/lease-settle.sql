-- $1 the lease's token, then text of arrays, one element per event: $2 event ids, $3 what becomes of it (published,
-- retrying, dead, ready), $4 attempts, $5 milliseconds until the next try, $6 the error.
--
-- Fenced by the token and its expiry: what another has claimed since is left alone. Returns how many were changed.

WITH settled AS (
  SELECT id::uuid, becomes, attempts::int, after::float8, error
  FROM unnest($2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[])
    AS event (id, becomes, attempts, after, error)
)
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
WHERE event.event_id = settled.id AND event.lease = $1::text::uuid AND event.state || '' = 'leased'
  AND event.available_at > clock_timestamp()
