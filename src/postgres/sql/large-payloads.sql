-- Payloads that the scan left out for their size. $1 text of an array of event ids.

SELECT event_id::text, payload::text, encode(payload_bytes, 'hex') FROM {{outbox}}
WHERE event_id = ANY ((SELECT $1::text::uuid[])::uuid[])
