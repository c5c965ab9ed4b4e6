-- $1 shard, $2 epoch, $3 event id or null: which message is about to go out alone.

UPDATE {{terms}} SET note = $3::text::uuid WHERE shard = $1::text::int AND epoch = $2::text::bigint
