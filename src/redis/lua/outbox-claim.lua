-- Claims what is due: leases that ran out first, and while there are such nothing else with them. Each is the claimer's
-- until its lease ends, on the clock of this server.
--
-- KEYS[1]  base name of the shard (see outbox-shared.lua)
-- ARGV     1 token, 2 lease (ms), 3 how many at most, 4 how many bytes at most (but at least one entry), 5 the most
--          attempts an entry has, 6 how many at most whose lease ran out, 7 '1' when a key goes on without its dead
-- returns  milliseconds until there may be more (-1: nothing waits), '1' when more leases have run out, what was dropped
--          because its entry is gone, the dead as member and attempts, and the claimed: member, attempts, '1' when its
--          lease had run out, and its entry
-- Invariant: an entry is given to one claimer until its lease ends. A lease that ran out is an attempt spent.

local box, now = outbox_at(KEYS[1]), outbox_now()
outbox_check(box)
local token, lease, count, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local attempts, few, continues = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local claimed, dead, total, dropped, visited = {}, {}, 0, 0, 0

local function claim(member, state, expired)
  local body = redis.call('HGET', box.entries, outbox_id(member))
  outbox_leave(box, member, state)
  state[S_STATE], state[S_AT], state[S_TOKEN] = 'leased', now + lease, token
  outbox_save(box, member, state)
  redis.call('ZADD', box.leased, state[S_AT], member)
  total = total + #body
  for _, part in ipairs({ member, state[S_ATTEMPTS], expired, body }) do claimed[#claimed + 1] = part end
end

-- Whether one more fits; the first always does.
local function fits(member)
  local size = redis.call('HSTRLEN', box.entries, outbox_id(member))
  return size == 0 or #claimed == 0 or total + size <= bytes
end

-- An entry that is gone can not be sent: its place is given up, and told.
local function drop(set, member, state)
  redis.call('ZREM', set, member)
  if state then outbox_remove(box, member, state, now) end
  dropped = dropped + 1
end

local full = false
for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.leased, '-inf', now, 'LIMIT', 0, few)) do
  local state = outbox_state(box, member)
  if not state or state[S_STATE] ~= 'leased' or redis.call('HEXISTS', box.entries, outbox_id(member)) == 0 then
    drop(box.leased, member, state and state[S_STATE] == 'leased' and state)
  elseif state[S_ATTEMPTS] + 1 >= attempts then
    state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
    outbox_bury(box, member, state, 'the relay that worked on it let its lease run out', continues, now)
    dead[#dead + 1] = member
    dead[#dead + 1] = state[S_ATTEMPTS]
  elseif #claimed < count * 4 and fits(member) then
    state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
    state[S_ERROR] = 'the relay that worked on it let its lease run out'
    claim(member, state, '1')
    full = true
  end
end

while not full and #claimed < count * 4 and visited < count * 4 + 100 do
  local due = redis.call('ZRANGEBYSCORE', box.pending, '-inf', now, 'LIMIT', 0, count - #claimed / 4)
  if #due == 0 then break end
  for _, member in ipairs(due) do
    visited = visited + 1
    local body = redis.call('HEXISTS', box.entries, outbox_id(member)) == 1
    local state = outbox_state(box, member)
    local word = state and state[S_STATE]
    if not body then
      drop(box.pending, member, state and word ~= 'published' and word ~= 'dead' and state)
    elseif not state then
      outbox_restore(box, member, redis.call('HGET', box.entries, outbox_id(member)), now)
    elseif word ~= 'ready' and word ~= 'scheduled' and word ~= 'retrying' then
      redis.call('ZREM', box.pending, member)
    elseif not fits(member) then
      full = true
      break
    else
      local key = state[S_KEY]
      local head = key and redis.call('HGET', box.heads, key)
      if head and head ~= member then
        outbox_leave(box, member, state)
        outbox_hold(box, member, state)
      else
        if key and not head then redis.call('HSET', box.heads, key, member) end
        claim(member, state, '0')
      end
    end
  end
end

-- Leases that have run out are told apart: whoever may not claim them now must not come back at once for them.
local soonest = -1
for set, from in pairs({ [box.pending] = '-inf', [box.leased] = '(' .. string.format('%.0f', now) }) do
  local first = redis.call('ZRANGEBYSCORE', set, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first then
    local wait = math.max(0, tonumber(first) - now)
    if soonest < 0 or wait < soonest then soonest = wait end
  end
end
local more = redis.call('ZCOUNT', box.leased, '-inf', now) > 0 and '1' or '0'
return { soonest, more, dropped, dead, claimed }
