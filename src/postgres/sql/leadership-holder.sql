-- $1 member, $2 shard. Who else holds the term of the shard, and for how many milliseconds more.

SELECT holder, EXTRACT(EPOCH FROM expires_at - clock_timestamp())::float8 * 1000 AS expires_in
FROM {{terms}} WHERE shard = $2::text::int AND holder NOT IN ('', $1) AND expires_at > clock_timestamp()
