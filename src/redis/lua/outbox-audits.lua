-- What people have done.
--
-- KEYS[1]  base name of the shard (see outbox-act.lua)
-- ARGV     none
-- returns  id and line of each, id and count of each
-- Invariant: changes nothing.

return { redis.call('HGETALL', KEYS[1] .. ':audits'), redis.call('HGETALL', KEYS[1] .. ':audit-counts') }
