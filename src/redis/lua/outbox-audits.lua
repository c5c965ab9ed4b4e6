-- What people have done.
--
-- KEYS     all of the shard (see outbox-act.lua)
-- ARGV     none
-- returns  id and line of each, id and count of each
-- Invariant: changes nothing.

return { redis.call('HGETALL', base .. ':audits'), redis.call('HGETALL', base .. ':audit-counts') }
