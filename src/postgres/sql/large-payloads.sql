-- Payloads that the scan left out for their size. $1 text of an array of event ids.

SELECT sequence::text, payload::text, payload_bytes FROM {{outbox}} WHERE event_id = ANY ($1::text::uuid[])
