-- Forgets revocations that have been remembered long enough.
--
-- KEYS     all of the shard (see outbox-shared.lua, due-shared.lua)
-- ARGV[1]  how many at most
-- returns  how many were forgotten
-- Invariant: one whose intent is still to be decided is kept.

local due, revoked, forgotten = base .. ':due', base .. ':revoked', 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', revoked, '-inf', outbox_now(), 'LIMIT', 0, ARGV[1])) do
  if not redis.call('ZSCORE', due, id) then forgotten = forgotten + redis.call('ZREM', revoked, id) end
end
return forgotten
