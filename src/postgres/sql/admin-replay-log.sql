-- As admin-replay.sql, for a log: an event has one number for good, so it is sent again under it, and comes before what is
-- pending now. $1–$7 the filter, $8 how many; {{away}} says whether those in the archive are meant too: true or false.
--
-- Those in the archive are moved back, so that the log has each event once. Discarded ones stay: nobody was to get them. Of an id
-- that was enqueued again after it had been forgotten, only the last is moved back: the outbox has each id once.
-- {{remember}} keeps ids where ids are kept.

WITH picked AS (
  SELECT event.event_id, event.created_at FROM {{outbox}} event
  WHERE event.state = 'published' AND {{filter}} LIMIT $8::text::int FOR UPDATE
), changed AS (
  UPDATE {{outbox}} event SET state = 'ready', attempts = 0, published_at = NULL, available_at = NULL, last_error = NULL
  FROM picked
  WHERE event.event_id = picked.event_id AND event.created_at = picked.created_at AND event.state = 'published'
  RETURNING 1
), away AS (
  DELETE FROM {{archive}} WHERE {{away}} AND ctid = ANY (ARRAY(
    SELECT DISTINCT ON (event.event_id) event.ctid FROM {{archive}} event
    WHERE event.state = 'published' AND {{filter}}
      AND NOT EXISTS (SELECT 1 FROM {{outbox}} there WHERE there.event_id = event.event_id)
      AND event.sequence > (SELECT trimmed FROM {{log}})
    ORDER BY event.event_id, event.sequence DESC LIMIT $8::text::int))
  RETURNING *
), copied AS (
  INSERT INTO {{outbox}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at)
  OVERRIDING SYSTEM VALUE
  SELECT event_id, sequence, 'ready', tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at
  FROM away
  RETURNING event_id, sequence
){{remember}}
SELECT ((SELECT count(*) FROM changed) + (SELECT count(*) FROM copied))::text AS count
