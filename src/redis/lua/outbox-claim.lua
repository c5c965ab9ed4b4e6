-- Claims what is due: leases that ran out first, and while there are such nothing else with them. Each is the claimer's
-- until its lease ends, on the clock of this server.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 token, 2 lease (ms), 3 how many at most, 4 how many bytes at most (but at least one entry), 5 the most
--          attempts an entry has, 6 how many at most whose lease ran out, 7 '1' when a key goes on without its dead
-- returns  milliseconds until there may be more (-1: nothing waits), '1' when more leases have run out, what was dropped
--          because its entry is gone, the dead as member and attempts, the claimed: member, attempts, '1' when its
--          lease had run out, and its entry; and by how many milliseconds the clock is behind what it was
-- Invariant: an entry is given to one claimer until its lease ends. A lease that ran out is an attempt spent.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
local token, lease, count, bytes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local attempts, most_expired, continues = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local claimed, dead, total, dropped, visited = {}, {}, 0, 0, 0
-- Lua hands at most some thousand values to one call.
local PAGE = 500
-- Milliseconds.
local CLOCK_STEP = 5000

-- Gives an entry to the claimer; who calls it writes that down.
local function lease_out(member, state, body, expired)
  state[S_STATE], state[S_AT], state[S_TOKEN] = 'leased', now + lease, token
  total = total + #body
  local at = #claimed
  claimed[at + 1], claimed[at + 2], claimed[at + 3], claimed[at + 4] = member, state[S_ATTEMPTS], expired, body
end

local function claim(member, state)
  local body = redis.call('HGET', box.entries, outbox_id(member))
  outbox_leave(box, member, state)
  lease_out(member, state, body, '1')
  outbox_save(box, member, state)
  redis.call('ZADD', box.leased, state[S_AT], member)
end

-- Whether one more fits; the first always does.
local function fits(member)
  local size = redis.call('HSTRLEN', box.entries, outbox_id(member))
  return size == 0 or #claimed == 0 or total + size <= bytes
end

-- An entry that is gone can not be sent: its place is given up, and reported.
local function drop(set, member, state)
  redis.call('ZREM', set, member)
  if state then outbox_remove(box, member, state, now) end
  dropped = dropped + 1
end

-- The clock has gone back, if numbers were given that it has not reached yet: they follow it. What was ready then is ready
-- now, and a lease ends no later than one that begins now; only what waits for a retry or its time waits by the new clock.
local behind = math.floor((tonumber(redis.call('GET', box.sequence) or 0) or 0) / 1000) - now
if behind > CLOCK_STEP then
  local from, to = '(' .. string.format('%.0f', now), string.format('%.0f', now + behind)
  -- What waits by the new clock lies in between, and stays: any page of them, so that none is in front for good.
  local pages = math.ceil(redis.call('ZCOUNT', box.pending, from, to) / PAGE)
  local offset = pages > 1 and redis.call('TIME')[2] % pages * PAGE or 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.pending, from, to, 'LIMIT', offset, PAGE)) do
    local state = outbox_state(box, member)
    if state and state[S_STATE] == 'ready' then
      state[S_DUE] = now
      outbox_save(box, member, state)
      redis.call('ZADD', box.pending, now, member)
    end
  end
  local last = '(' .. string.format('%.0f', now + 2 * lease)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.leased, last, '+inf', 'LIMIT', 0, PAGE)) do
    local state = outbox_state(box, member)
    if state and state[S_STATE] == 'leased' then
      state[S_AT] = now + lease
      outbox_save(box, member, state)
      redis.call('ZADD', box.leased, state[S_AT], member)
    end
  end
else
  behind = 0
end

local full = false
for _, member in ipairs(redis.call('ZRANGEBYSCORE', box.leased, '-inf', now, 'LIMIT', 0, most_expired)) do
  local state = outbox_state(box, member)
  if not state or state[S_STATE] ~= 'leased' or redis.call('HEXISTS', box.entries, outbox_id(member)) == 0 then
    drop(box.leased, member, state and state[S_STATE] == 'leased' and state)
  elseif state[S_ATTEMPTS] + 1 >= attempts then
    state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
    outbox_mark_dead(box, member, state, 'the relay that worked on it let its lease run out', continues, now)
    dead[#dead + 1] = member
    dead[#dead + 1] = state[S_ATTEMPTS]
  elseif #claimed < count * 4 and fits(member) then
    state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
    state[S_ERROR] = 'the relay that worked on it let its lease run out'
    claim(member, state)
    full = true
  end
end

-- What is claimed in one page is written in one go. Whatever else must be written first sees it written.
local heads, taken = {}, {}
local function write()
  if #taken == 0 then return end
  local members, leased, states, first, retrying = {}, {}, {}, {}, {}
  local ends = string.format('%.0f', now + lease)
  for n, one in ipairs(taken) do
    local member, state = one[1], one[2]
    members[n] = member
    leased[2 * n - 1], leased[2 * n] = ends, member
    states[2 * n - 1], states[2 * n] = outbox_id(member), cmsgpack.pack(state)
    if one[3] then first[#first + 1], first[#first + 2] = state[S_KEY], member end
    if one[4] then retrying[#retrying + 1] = member end
  end
  redis.call('ZREM', box.pending, unpack(members))
  if #retrying > 0 then redis.call('ZREM', box.retrying, unpack(retrying)) end
  if #first > 0 then redis.call('HSET', box.heads, unpack(first)) end
  redis.call('HSET', box.states, unpack(states))
  redis.call('ZADD', box.leased, unpack(leased))
  heads, taken = {}, {}
end

local function head_of(key)
  if heads[key] == nil then heads[key] = redis.call('HGET', box.heads, key) end
  return heads[key]
end

while not full and #claimed < count * 4 and visited < count * 4 + 100 do
  local due = redis.call('ZRANGEBYSCORE', box.pending, '-inf', now, 'LIMIT', 0, math.min(PAGE, count - #claimed / 4))
  if #due == 0 then break end
  local ids, keys = {}, {}
  for n, member in ipairs(due) do ids[n] = outbox_id(member) end
  local states = redis.call('HMGET', box.states, unpack(ids))
  for n = 1, #due do
    states[n] = outbox_unpacked(states[n])
    if states[n] and states[n][S_KEY] then keys[#keys + 1] = states[n][S_KEY] end
  end
  if #keys > 0 then
    for n, head in ipairs(redis.call('HMGET', box.heads, unpack(keys))) do heads[keys[n]] = head end
  end
  for n, member in ipairs(due) do
    visited = visited + 1
    local body = redis.call('HGET', box.entries, ids[n])
    local state = states[n]
    local word = state and state[S_STATE]
    if not body then
      write()
      drop(box.pending, member, state and word ~= 'published' and word ~= 'dead' and state)
      heads = {}
    elseif not state then
      write()
      outbox_restore(box, member, body, now)
      heads = {}
    elseif word ~= 'ready' and word ~= 'scheduled' and word ~= 'retrying' then
      redis.call('ZREM', box.pending, member)
    elseif #claimed > 0 and total + #body > bytes then
      full = true
      break
    else
      local key = state[S_KEY]
      local head = key and head_of(key)
      if head and head ~= member then
        outbox_leave(box, member, state)
        outbox_hold(box, member, state)
      else
        if key then heads[key] = member end
        lease_out(member, state, body, '0')
        taken[#taken + 1] = { member, state, key and not head, word == 'retrying' }
      end
    end
  end
  write()
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
return { soonest, more, dropped, dead, claimed, behind }
