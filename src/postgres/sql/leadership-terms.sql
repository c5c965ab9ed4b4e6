-- Which shard is whose, and for how many milliseconds more.

SELECT shard, holder, EXTRACT(EPOCH FROM expires_at - clock_timestamp())::float8 * 1000 AS expires_in FROM {{terms}}
WHERE shard >= 0 AND holder <> '' AND expires_at > clock_timestamp(){{within}} ORDER BY shard
