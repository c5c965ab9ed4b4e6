-- $1 member, $2 mode. One that reads in another mode and is waited for, and for how many milliseconds more it may live:
-- the last of them. See leadership-join.sql for who that is.

SELECT member AS holder, EXTRACT(EPOCH FROM until - clock_timestamp())::float8 * 1000 AS expires_in
FROM (
  SELECT member, GREATEST(expires_at, (SELECT max(expires_at) FROM {{terms}} WHERE shard >= 0 AND holder = member)) AS until
  FROM {{members}} WHERE member <> $1 AND mode <> $2
) AS other
WHERE until > clock_timestamp() ORDER BY until DESC LIMIT 1
