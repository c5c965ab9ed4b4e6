-- $1–$7 the filter, $8 how many. Copies of published events under new ids, in the order of the old; answers how many.
-- Whoever receives them cannot tell that they have had them before. {{remember}} keeps their ids where ids are kept.

WITH copied AS (
  SELECT gen_random_uuid() AS event_id, nextval(pg_get_serial_sequence('{{outbox}}', 'sequence')) AS sequence,
    tenant_id, topic, key, source, event_type, event_version, aggregate_type, aggregate_id, attributes, payload,
    payload_bytes
  FROM (SELECT * FROM {{outbox}} event WHERE event.state = 'published' AND {{filter}} ORDER BY event.sequence
    LIMIT $8::text::int) AS old
){{remember}}, inserted AS (
  INSERT INTO {{outbox}} (event_id, sequence, tenant_id, topic, key, source, event_type, event_version, aggregate_type,
    aggregate_id, attributes, payload, payload_bytes)
  SELECT event_id, sequence, tenant_id, topic, key, source, event_type, event_version, aggregate_type, aggregate_id,
    attributes, payload, payload_bytes FROM copied
  RETURNING 1
)
SELECT count(*)::text AS count FROM inserted
