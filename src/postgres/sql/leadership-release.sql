-- $1 member, $2 shard, $3 epoch. The next holder need not wait, nor be careful.

UPDATE {{terms}} SET holder = '', note = NULL, expires_at = '-infinity'
WHERE shard = $2::text::int AND epoch = $3::text::bigint AND holder = $1{{within}}
