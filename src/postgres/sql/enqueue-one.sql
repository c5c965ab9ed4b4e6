-- One event into the outbox, in the caller's transaction: what almost every transaction does.
--
-- $1 id, $2 tenant, $3 topic, $4 key, $5 source, $6 type, $7 version, $8 aggregate type, $9 aggregate id,
-- $10 foreign id, $11 attributes (JSON), $12 payload (JSON), $13 payload (hex), $14 time not before which.
-- Returns its sequence, or no row where the id is there already. {{waking}} notifies an idle relay, see wake. One plain
-- INSERT: a statement around it costs the server about a sixth more.

INSERT INTO {{outbox}} (event_id, state, tenant_id, topic, key, source, event_type, event_version, aggregate_type,
  aggregate_id, foreign_id, attributes, payload, payload_bytes, available_at)
VALUES ($1::text::uuid, CASE WHEN $14::text IS NULL THEN 'ready' ELSE 'scheduled' END, $2::text, $3::text, $4::text,
  $5::text, $6::text, $7::text::int, $8::text, $9::text, $10::text, $11::text::jsonb, $12::text::jsonb,
  decode($13::text, 'hex'), $14::text::timestamptz)
ON CONFLICT (event_id) DO NOTHING
RETURNING sequence::text AS sequence{{waking}}
