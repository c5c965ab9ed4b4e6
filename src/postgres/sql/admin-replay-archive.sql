-- As admin-replay.sql, with what the cleaner has moved to the archive. $1–$7 the filter, $8 how many. {{archived}} is the
-- archive table, or a temporary one with what was read from files. {{remember}} keeps ids where ids are kept.
--
-- An event is sent once, however often it was archived: as it was the last time, and only where the outbox has no row of
-- its id. All draw new numbers in the order of their old ones, wherever they come from. The archive stays as it is.

WITH here AS (
  SELECT event.event_id, event.created_at, event.sequence FROM {{outbox}} event
  WHERE event.state = 'published' AND {{filter}} LIMIT $8::text::int FOR UPDATE
), away AS (
  SELECT DISTINCT ON (event.event_id) event.* FROM {{archived}} event
  WHERE {{filter}} AND NOT EXISTS (SELECT 1 FROM {{outbox}} there WHERE there.event_id = event.event_id)
  ORDER BY event.event_id, event.sequence DESC
), numbered AS (
  SELECT event_id, created_at, nextval(pg_get_serial_sequence('{{outbox}}', 'sequence')) AS sequence
  FROM (
    SELECT event_id, created_at, sequence FROM here UNION ALL SELECT event_id, created_at, sequence FROM away
    ORDER BY sequence, event_id LIMIT $8::text::int
  ) AS ordered
), changed AS (
  UPDATE {{outbox}} event SET state = 'ready', sequence = numbered.sequence, attempts = 0, published_at = NULL,
    available_at = NULL, last_error = NULL
  FROM numbered
  WHERE event.event_id = numbered.event_id AND event.created_at = numbered.created_at AND event.state = 'published'
  RETURNING 1
), copied AS (
  INSERT INTO {{outbox}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at)
  SELECT away.event_id, numbered.sequence, 'ready', tenant_id, topic, {{key}}, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, away.created_at
  FROM away JOIN numbered USING (event_id)
  ON CONFLICT DO NOTHING
  RETURNING event_id, sequence
){{remember}}
SELECT ((SELECT count(*) FROM changed) + (SELECT count(*) FROM copied))::text AS count
