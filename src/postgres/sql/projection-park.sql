-- Puts events aside. $1 name, $2 version, then lists: $3 positions, $4 keys, $5 types, $6 messages, $7 errors, $8 delays in
-- milliseconds. One without an error waits behind another of its key.

INSERT INTO {{parked}} (name, version, position, key, type, message, attempts, error, next_at)
SELECT $1, $2::text::int, event.position, event.key, event.type, event.message,
       CASE WHEN event.error IS NULL THEN 0 ELSE 1 END, event.error,
       CASE WHEN event.error IS NOT NULL THEN clock_timestamp() + event.delay * interval '1 millisecond' END
FROM unnest($3::text::bigint[], $4::text::text[], $5::text::text[], $6::text::text[], $7::text::text[], $8::text::float8[])
  AS event(position, key, type, message, error, delay)
ON CONFLICT (name, version, position) DO NOTHING
