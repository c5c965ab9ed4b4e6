-- As large-payloads.sql, for events that may have been moved to the archive. $1 text of an array of numbers.

SELECT sequence::text, payload::text, encode(payload_bytes, 'hex') FROM {{outbox}}
WHERE sequence = ANY ((SELECT $1::text::bigint[])::bigint[])
UNION ALL
SELECT sequence::text, payload::text, encode(payload_bytes, 'hex') FROM {{archive}}
WHERE sequence = ANY ((SELECT $1::text::bigint[])::bigint[])
