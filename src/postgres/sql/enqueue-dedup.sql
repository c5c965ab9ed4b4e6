-- As enqueue.sql, for an outbox with a table of ids: its own rows do not show whether an event was there before, because
-- they are removed once published or lie in time partitions. Numbers are drawn in the order given.

WITH event AS (
  SELECT DISTINCT ON (id) * FROM unnest($1::text::uuid[], $2::text::text[], $3::text::text[], $4::text::text[],
    $5::text::text[], $6::text::text[], $7::text::text[], $8::text::text[], $9::text::text[], $10::text::text[],
    $11::text::text[], $12::text::text[], $13::text::text[], $14::text::text[])
    WITH ORDINALITY AS event (id, tenant, topic, key, source, type, version, aggregate_type, aggregate_id, foreign_id,
      attributes, payload, bytes, due, place)
  ORDER BY id, place
), fresh AS (
  INSERT INTO {{ids}} (event_id, sequence)
  SELECT id, nextval(pg_get_serial_sequence('{{outbox}}', 'sequence')) FROM (SELECT id FROM event ORDER BY place) AS ordered
  ON CONFLICT (event_id) DO NOTHING
  RETURNING event_id, sequence
), inserted AS (
  INSERT INTO {{outbox}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
    aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, available_at)
  OVERRIDING SYSTEM VALUE
  SELECT id, fresh.sequence, CASE WHEN due IS NULL THEN 'ready' ELSE 'scheduled' END, tenant, topic, key, source, type,
    version::int, aggregate_type, aggregate_id, foreign_id, attributes::jsonb, payload::jsonb, decode(bytes, 'hex'),
    due::timestamptz
  FROM event JOIN fresh ON fresh.event_id = event.id
  RETURNING event_id, sequence
){{wake}}
SELECT event_id::text AS event_id, sequence::text AS sequence{{woken}} FROM inserted
