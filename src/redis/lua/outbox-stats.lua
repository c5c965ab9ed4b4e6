-- How a shard stands, by counts that are kept anyway.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV[1]  how many keys that wait are counted one by one
-- returns  ready, scheduled, retrying, leased, held, published, dead, keys that wait, '1' when those are an estimate,
--          milliseconds since the oldest that could go out, or that a relay has, was created or due (-1: none is)
-- Invariant: changes nothing; costs the same with ten entries and with ten million.

local box, now = outbox_at(base), outbox_now()
local limit = tonumber(ARGV[1])
local later = '(' .. string.format('%.0f', now)
local due = redis.call('ZCOUNT', box.pending, '-inf', now)
local retrying = redis.call('ZCOUNT', box.retrying, '-inf', now)
local scheduled = redis.call('ZCOUNT', box.pending, later, '+inf') - redis.call('ZCOUNT', box.retrying, later, '+inf')

local held, keys, estimated, from = redis.call('ZCARD', box.held), 0, '0', '-'
while keys < limit do
  local first = redis.call('ZRANGEBYLEX', box.held, from, '+', 'LIMIT', 0, 1)[1]
  if not first then break end
  keys = keys + 1
  -- Past all of its key.
  from = '[' .. string.sub(first, 1, -MEMBER_LENGTH - 2) .. ';'
end
local rest = from ~= '-' and redis.call('ZLEXCOUNT', box.held, from, '+') or 0
if rest > 0 then
  keys, estimated = math.floor(keys * held / (held - rest)), '1'
end

local oldest = -1
for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.pending, '-inf', now, 'LIMIT', 0, 100)) do
  local state = outbox_state(box, member)
  if state then oldest = math.max(oldest, now - math.max(state[S_CREATED], state[S_DUE])) end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.leased, '-inf', '+inf', 'LIMIT', 0, 100)) do
  local state = outbox_state(box, member)
  if state then oldest = math.max(oldest, now - math.max(state[S_CREATED], math.min(now, state[S_DUE]))) end
end
return {
  due - retrying, scheduled, redis.call('ZCARD', box.retrying), redis.call('ZCARD', box.leased), held,
  redis.call('ZCARD', box.sent), redis.call('ZCARD', box.dead), keys, estimated, oldest,
}
