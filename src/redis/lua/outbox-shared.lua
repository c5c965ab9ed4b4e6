-- What every script of the outbox begins with: the names of one shard, the clock, and how an entry moves. A shard lives
-- in one slot. Its keys are `base` with one of these behind it, and every script is given all of them: while a slot moves
-- to another node of a cluster the server looks at the keys that are named, and at no others. The first of them, :absent,
-- never exists, so that it refuses a script as a whole (TRYAGAIN) until the slot has moved: a key that a script empties
-- would not be found again by the same script.
--
--   :entries   hash, event id → its key (`-` for none, otherwise `length:key`), header (JSON), a line break, the data as
--              it is. Written once, never changed
--   :states    hash, event id → state, attempts, sequence, created, due, at, token, key, error (MessagePack, see S…)
--   :pending   sorted set of what may be claimed, by the time of its next attempt (ms)
--   :leased    sorted set of what a relay has claimed, by the end of its lease (ms)
--   :retrying  sorted set of those in :pending that have failed before, by the same time
--   :held      sorted set by name: what waits for an earlier one of its key, `length:key:member`
--   :heads     hash, key → the member that goes, or stands, first
--   :blocked   set of keys whose head is dead
--   :dead      sorted set of what is parked, by sequence
--   :sent      sorted set of what is published, by when (ms)
--   :sequence  the number given last
--
-- A member is the sequence in 16 digits and the event id: what is due at the same time goes in the order it came in.
--
-- Invariants: an entry is in exactly one of :pending, :leased, :held, :dead and :sent, the one its state says. Of a key
-- only its head is in :pending or :leased, but for what is scheduled for later: that joins its key when it is due.
-- While something of a key is held, the key has a head. Writes go from :entries to :states to the sets, so that what a
-- script left behind that was stopped halfway is found by the repair.

local S_STATE, S_ATTEMPTS, S_SEQUENCE, S_CREATED, S_DUE, S_AT, S_TOKEN, S_KEY, S_ERROR = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ID_LENGTH, MEMBER_LENGTH = 36, 52

local function outbox_at(base)
  return {
    entries = base .. ':entries', states = base .. ':states', pending = base .. ':pending', leased = base .. ':leased',
    retrying = base .. ':retrying', held = base .. ':held', heads = base .. ':heads', blocked = base .. ':blocked',
    dead = base .. ':dead', sent = base .. ':sent', sequence = base .. ':sequence',
  }
end

local function outbox_now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Every key is read before the first write: one of another type fails here, with nothing changed.
local function outbox_check(box)
  for _, name in ipairs({ 'pending', 'leased', 'retrying', 'held', 'dead', 'sent' }) do redis.call('ZCARD', box[name]) end
  for _, name in ipairs({ 'entries', 'states', 'heads' }) do redis.call('HLEN', box[name]) end
  redis.call('SCARD', box.blocked)
end

-- The first of so many new numbers. They follow the clock, so that they go on growing when the key was lost.
local function outbox_sequence(box, now, count)
  local sequence = math.max((tonumber(redis.call('GET', box.sequence) or 0) or 0) + 1, now * 1000)
  redis.call('SET', box.sequence, string.format('%.0f', sequence + (count or 1) - 1))
  return sequence
end

local function outbox_member(sequence, id)
  return string.format('%016.0f', sequence) .. id
end

local function outbox_id(member)
  return string.sub(member, -ID_LENGTH)
end

-- The state of an entry; nil for none, and for what no script of ours has written: it would stop every script that meets it.
local function outbox_unpacked(packed)
  if not packed then return nil end
  local good, state = pcall(cmsgpack.unpack, packed)
  if not good or type(state) ~= 'table' or type(state[S_STATE]) ~= 'string' then return nil end
  for i = S_ATTEMPTS, S_AT do
    if type(state[i]) ~= 'number' then return nil end
  end
  if state[S_KEY] and type(state[S_KEY]) ~= 'string' then return nil end
  return state
end

local function outbox_state(box, member)
  return outbox_unpacked(redis.call('HGET', box.states, outbox_id(member)))
end

local function outbox_save(box, member, state)
  redis.call('HSET', box.states, outbox_id(member), cmsgpack.pack(state))
end

local function outbox_waiting(key, member)
  return #key .. ':' .. key .. ':' .. member
end

local function outbox_hold(box, member, state)
  state[S_STATE] = 'held'
  outbox_save(box, member, state)
  redis.call('ZADD', box.held, 0, outbox_waiting(state[S_KEY], member))
end

-- Lets an entry be claimed at its time: behind an earlier one of its key it is held.
local function outbox_offer(box, member, state, kind, due, now)
  local key = state[S_KEY]
  state[S_DUE] = due
  if key and due <= now then
    local head = redis.call('HGET', box.heads, key)
    if head and head ~= member then return outbox_hold(box, member, state) end
    if not head then redis.call('HSET', box.heads, key, member) end
  elseif key and kind ~= 'scheduled' then
    redis.call('HSET', box.heads, key, member)
  end
  state[S_STATE] = kind
  outbox_save(box, member, state)
  redis.call('ZADD', box.pending, due, member)
  if kind == 'retrying' then redis.call('ZADD', box.retrying, due, member) end
end

-- The head of a key is gone: the next one that is held follows, if there is one.
local function outbox_advance(box, key, now)
  local from = #key .. ':' .. key
  while true do
    local first = redis.call('ZRANGEBYLEX', box.held, '[' .. from .. ':', '(' .. from .. ';', 'LIMIT', 0, 1)[1]
    if not first then
      redis.call('HDEL', box.heads, key)
      return
    end
    redis.call('ZREM', box.held, first)
    local member = string.sub(first, -MEMBER_LENGTH)
    local state = outbox_state(box, member)
    if state and state[S_STATE] == 'held' then
      redis.call('HSET', box.heads, key, member)
      state[S_STATE] = 'ready'
      state[S_DUE] = math.min(state[S_DUE], now)
      outbox_save(box, member, state)
      redis.call('ZADD', box.pending, state[S_DUE], member)
      return
    end
  end
end

-- The same for many keys: one call for all, but for the look at what is held.
local function outbox_advance_all(box, keys, now)
  local firsts, members, ids, without, from = {}, {}, {}, {}, {}
  local any = redis.call('ZCARD', box.held) > 0
  for _, key in ipairs(keys) do
    local range = #key .. ':' .. key
    local first = any and redis.call('ZRANGEBYLEX', box.held, '[' .. range .. ':', '(' .. range .. ';', 'LIMIT', 0, 1)[1]
    if first then
      firsts[#firsts + 1], members[#members + 1], from[#from + 1] = first, string.sub(first, -MEMBER_LENGTH), key
      ids[#ids + 1] = outbox_id(first)
    else
      without[#without + 1] = key
    end
  end
  if #without > 0 then redis.call('HDEL', box.heads, unpack(without)) end
  if #firsts == 0 then return end
  local packed = redis.call('HMGET', box.states, unpack(ids))
  local gone, heads, states, pending = {}, {}, {}, {}
  for n, member in ipairs(members) do
    local state = outbox_unpacked(packed[n])
    if state and state[S_STATE] == 'held' then
      state[S_STATE], state[S_DUE] = 'ready', math.min(state[S_DUE], now)
      gone[#gone + 1] = firsts[n]
      heads[#heads + 1], heads[#heads + 2] = from[n], member
      states[#states + 1], states[#states + 2] = ids[n], cmsgpack.pack(state)
      pending[#pending + 1], pending[#pending + 2] = state[S_DUE], member
    else
      outbox_advance(box, from[n], now)
    end
  end
  if #gone == 0 then return end
  redis.call('ZREM', box.held, unpack(gone))
  redis.call('HSET', box.heads, unpack(heads))
  redis.call('HSET', box.states, unpack(states))
  redis.call('ZADD', box.pending, unpack(pending))
end

-- Out of :pending, :leased, :held, :dead or :sent, whichever it is in.
local function outbox_leave(box, member, state)
  local word = state[S_STATE]
  if word == 'held' then
    redis.call('ZREM', box.held, outbox_waiting(state[S_KEY], member))
  elseif word == 'leased' then
    redis.call('ZREM', box.leased, member)
  elseif word == 'dead' then
    redis.call('ZREM', box.dead, member)
  elseif word == 'published' then
    redis.call('ZREM', box.sent, member)
  else
    redis.call('ZREM', box.pending, member)
    if word == 'retrying' then redis.call('ZREM', box.retrying, member) end
  end
end

local function outbox_is_head(box, member, state)
  return state[S_KEY] and redis.call('HGET', box.heads, state[S_KEY]) == member
end

-- Parks an entry for a person. Its key waits, or goes on without it.
local function outbox_mark_dead(box, member, state, reason, continues, now)
  outbox_leave(box, member, state)
  state[S_STATE], state[S_ERROR], state[S_AT], state[S_TOKEN] = 'dead', reason, now, false
  outbox_save(box, member, state)
  redis.call('ZADD', box.dead, state[S_SEQUENCE], member)
  if outbox_is_head(box, member, state) then
    if continues then outbox_advance(box, state[S_KEY], now) else redis.call('SADD', box.blocked, state[S_KEY]) end
  end
end

-- Takes an entry out for good.
local function outbox_remove(box, member, state, now)
  local head = outbox_is_head(box, member, state)
  outbox_leave(box, member, state)
  redis.call('HDEL', box.states, outbox_id(member))
  redis.call('HDEL', box.entries, outbox_id(member))
  if head then
    redis.call('SREM', box.blocked, state[S_KEY])
    outbox_advance(box, state[S_KEY], now)
  end
end

-- An entry taken apart: key or false, where its header begins, where that ends.
local function outbox_parts(body)
  local key, from = false, 2
  local length = string.match(body, '^(%d+):')
  if length then
    from = #length + 2
    key = string.sub(body, from, from + tonumber(length) - 1)
    from = from + tonumber(length)
  end
  return key, from, (string.find(body, '\n', from, true) or #body + 1) - 1
end

-- What the state of an entry is when nobody has kept it: as if it had just come.
local function outbox_anew(box, body, now)
  return { 'ready', 0, outbox_sequence(box, now), now, now, now, false, outbox_parts(body), false }
end

-- An entry as a person sees it: member, state, attempts, created, due, at, key, error, header.
local function outbox_shown(box, member, state)
  local body = redis.call('HGET', box.entries, outbox_id(member)) or ''
  local _, from, to = outbox_parts(body)
  return {
    member, state[S_STATE], state[S_ATTEMPTS], state[S_CREATED], state[S_DUE], state[S_AT], state[S_KEY],
    state[S_ERROR], string.sub(body, from, to),
  }
end

-- An entry whose state is gone starts anew, at the place it has.
local function outbox_restore(box, member, body, now)
  local state = outbox_anew(box, body, now)
  state[S_SEQUENCE] = tonumber(string.sub(member, 1, 16))
  redis.call('ZREM', box.pending, member)
  outbox_offer(box, member, state, 'ready', now, now)
end

-- A lease that ran out: an attempt is spent, and the entry is offered again, or parked.
local function outbox_expire(box, member, state, attempts, continues, now)
  state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
  state[S_ERROR] = 'the relay that worked on it let its lease run out'
  if state[S_ATTEMPTS] >= attempts then return outbox_mark_dead(box, member, state, state[S_ERROR], continues, now) end
  outbox_leave(box, member, state)
  state[S_TOKEN] = false
  outbox_offer(box, member, state, 'retrying', now, now)
end
