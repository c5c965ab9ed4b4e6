-- Events that were read from archive files, into a temporary table of the shape of the outbox. Text of arrays, one element
-- per event: $1 event ids, $2 sequences, $3 tenants, $4 topics, $5 keys, $6 sources, $7 types, $8 versions, $9 aggregate
-- types, $10 aggregate ids, $11 foreign ids, $12 attributes, $13 payloads (JSON), $14 payloads (hex), $15 created.

INSERT INTO {{staged}} (event_id, sequence, state, tenant_id, topic, key, source, event_type, event_version,
  aggregate_type, aggregate_id, foreign_id, attributes, payload, payload_bytes, created_at, attempts)
SELECT id::uuid, sequence::bigint, 'published', tenant, topic, key, source, type, version::int, aggregate_type, aggregate_id,
  foreign_id, attributes::jsonb, payload::jsonb, decode(bytes, 'hex'), created::timestamptz, 0
FROM unnest($1::text::text[], $2::text::text[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
  $7::text::text[], $8::text::text[], $9::text::text[], $10::text::text[], $11::text::text[], $12::text::text[],
  $13::text::text[], $14::text::text[], $15::text::text[])
  AS event (id, sequence, tenant, topic, key, source, type, version, aggregate_type, aggregate_id, foreign_id, attributes,
    payload, bytes, created)
