-- Removes what was published before the retention, oldest first.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 retention (ms), 2 how many at most
-- returns  how many were removed
-- Invariant: nothing but what is published is removed.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
local old = redis.call('ZRANGEBYSCORE', box.sent, '-inf', now - tonumber(ARGV[1]), 'LIMIT', 0, ARGV[2])
for _, member in ipairs(old) do
  local state = outbox_state(box, member)
  redis.call('ZREM', box.sent, member)
  if not state or state[S_STATE] == 'published' then
    redis.call('HDEL', box.states, outbox_id(member))
    redis.call('HDEL', box.entries, outbox_id(member))
  end
end
return #old
