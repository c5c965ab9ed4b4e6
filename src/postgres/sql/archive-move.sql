-- As clean-published.sql, and keeps what it removes in the archive: in one statement, so there is neither a loss nor a
-- second copy.

WITH old AS (
  SELECT event_id, created_at FROM {{outbox}}
  WHERE state = 'published' AND published_at < (SELECT clock_timestamp()) - $1::text::float8 * interval '1 millisecond'
  ORDER BY published_at LIMIT $2::text::int FOR UPDATE SKIP LOCKED
), removed AS (
  DELETE FROM {{outbox}} event USING old
  WHERE event.event_id = old.event_id AND event.created_at = old.created_at AND event.state = 'published'
  RETURNING event.*
)
INSERT INTO {{archive}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
  aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at, available_at, published_at,
  attempts, locked_at, lease, last_error)
SELECT event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version, aggregate_type, aggregate_id,
  foreign_id, attributes, payload, payload_bytes, created_at, available_at, published_at, attempts, locked_at, lease,
  last_error
FROM removed
