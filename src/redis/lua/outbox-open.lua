-- Lets keys go on that wait for a dead entry: for a relay that goes on without its dead, after one that did not.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV[1]  how many keys at most
-- returns  how many are left
-- Invariant: a key whose head is not dead is left alone.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
for _, key in ipairs(redis.call('SRANDMEMBER', box.blocked, ARGV[1])) do
  local head = redis.call('HGET', box.heads, key)
  local state = head and outbox_state(box, head)
  redis.call('SREM', box.blocked, key)
  if state and state[S_STATE] == 'dead' then outbox_advance(box, key, now) end
end
return redis.call('SCARD', box.blocked)
