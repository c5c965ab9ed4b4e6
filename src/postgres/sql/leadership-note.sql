-- $1 shard, $2 epoch, $3 what is about to go out alone, or null.

UPDATE {{terms}} SET note = $3::text::{{note}} WHERE shard = $1::text::int AND epoch = $2::text::bigint{{within}}
