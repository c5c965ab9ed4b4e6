-- One or many events into the outbox, in the caller's transaction.
--
-- $1… text of arrays, one element per event: ids, tenants, topics, keys, sources, types, versions, aggregate types,
-- aggregate ids, foreign ids, attributes (JSON), payloads (JSON), payloads (hex), times not before which.
-- Returns event_id and sequence of those that were new. Numbers are drawn in the order given.
-- {{wake}} notifies an idle relay, see wake.

WITH inserted AS (
  INSERT INTO {{outbox}} (event_id, state, tenant_id, topic, key, source, event_type, event_version, aggregate_type,
    aggregate_id, foreign_id, attributes, payload, payload_bytes, available_at)
  SELECT id::uuid, CASE WHEN due IS NULL THEN 'ready' ELSE 'scheduled' END, tenant, topic, key, source, type,
    version::int, aggregate_type, aggregate_id, foreign_id, attributes::jsonb, payload::jsonb, decode(bytes, 'hex'),
    due::timestamptz
  FROM unnest($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[],
    $6::text::text[], $7::text::text[], $8::text::text[], $9::text::text[], $10::text::text[], $11::text::text[],
    $12::text::text[], $13::text::text[], $14::text::text[])
    AS event (id, tenant, topic, key, source, type, version, aggregate_type, aggregate_id, foreign_id, attributes,
      payload, bytes, due)
  ON CONFLICT (event_id) DO NOTHING
  RETURNING event_id, sequence
){{wake}}
SELECT event_id::text AS event_id, sequence::text AS sequence{{woken}} FROM inserted
