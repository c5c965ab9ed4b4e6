-- $1–$7 the filter, $8 how many. Copies of published events under new ids, in the order of the old; returns how many.
-- Receivers cannot know that they have had them before. {{history}} are the events that match, in the outbox
-- and, where asked for, in its archive. {{remember}} keeps their ids where ids are kept.

WITH drawn AS (
  SELECT gen_random_uuid() AS event_id, nextval(pg_get_serial_sequence('{{outbox}}', 'sequence')) AS sequence,
    tenant_id, topic, {{key}} AS key, source, event_type, event_version, aggregate_type, aggregate_id, attributes, payload,
    payload_bytes
  FROM (SELECT * FROM ({{history}}) AS event ORDER BY event.sequence LIMIT $8::text::int) AS old
), copied AS (
  INSERT INTO {{outbox}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, attributes, payload, payload_bytes)
  SELECT event_id, sequence, 'ready', tenant_id, topic, key, source, event_type, event_version, aggregate_type,
    aggregate_id, attributes, payload, payload_bytes FROM drawn
  RETURNING event_id, sequence
){{remember}}
SELECT count(*)::text AS count FROM copied
