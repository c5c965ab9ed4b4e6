-- As admin-discard.sql, for a log: what is discarded will not be sent, and it happened. It goes to the archive under its
-- number, as `discarded`, in the same statement.

WITH picked AS (
  SELECT event.event_id, event.created_at FROM {{outbox}} event
  WHERE {{condition}} AND {{filter}}
  ORDER BY {{order}} LIMIT $8::text::int FOR UPDATE
), removed AS (
  DELETE FROM {{outbox}} event USING picked
  WHERE event.event_id = picked.event_id AND event.created_at = picked.created_at AND {{condition}}
  RETURNING event.*
), kept AS (
  INSERT INTO {{archive}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at, attempts, last_error)
  SELECT event_id, sequence, 'discarded', tenant_id, topic, key, source, event_type, event_version, aggregate_type,
    aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at, attempts, last_error
  FROM removed
  RETURNING 1
)
SELECT count(*)::text AS count FROM kept
