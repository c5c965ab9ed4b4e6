-- $1 member, $2 shard, $3 epoch, $4 lease in ms. Whoever holds a term lives: its membership is renewed with it.

WITH alive AS (
  UPDATE {{members}} SET expires_at = clock_timestamp() + $4::text::float8 * interval '1 millisecond'
  WHERE member = $1 AND expires_at > clock_timestamp(){{within}}
)
UPDATE {{terms}} SET expires_at = clock_timestamp() + $4::text::float8 * interval '1 millisecond'
WHERE shard = $2::text::int AND epoch = $3::text::bigint AND holder = $1 AND expires_at > clock_timestamp(){{within}}
