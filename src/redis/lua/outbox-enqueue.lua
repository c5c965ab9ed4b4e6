-- Adds events to one shard of the outbox. Runs on its own, or as a step of a unit of work's commit.
--
-- keys[1]  base name of the shard (see outbox-shared.lua)
-- args     for each event: event id, key or '', '1' when it has a key, when it is due (ms, or '' for now), header and data
-- returns  the places, from 0, of those that were there already: they are left as they are
-- Invariants: whoever calls it has seen every key to be of its type: nothing is written before. Entries are written
-- before their states, and states before their places, so that nothing is lost to a script that stops halfway.

-- What is new of some events, in one call for each kind of write. Where each goes is as outbox_offer has it for one.
local function outbox_add(box, args, from, to, sequence, now, known)
  local fresh, keys = {}, {}
  for i = from, to, 5 do
    if redis.call('HSETNX', box.entries, args[i], args[i + 4]) == 1 then
      fresh[#fresh + 1] = i
      if args[i + 2] == '1' then keys[#keys + 1] = args[i + 1] end
    else
      known[#known + 1] = (i - 1) / 5
    end
  end
  if #fresh == 0 then return end
  local heads = {}
  if #keys > 0 then
    for n, head in ipairs(redis.call('HMGET', box.heads, unpack(keys))) do heads[keys[n]] = head end
  end
  local first, states, pending, held = {}, {}, {}, {}
  local at_once = string.format('%.0f', now)
  for n, i in ipairs(fresh) do
    local id, due = args[i], tonumber(args[i + 3]) or now
    local key = args[i + 2] == '1' and args[i + 1]
    local number = sequence + (i - 1) / 5
    local member = outbox_member(number, id)
    local state = { due > now and 'scheduled' or 'ready', 0, number, now, due, now, false, key, false }
    if key and due <= now and heads[key] then
      state[S_STATE] = 'held'
      held[#held + 1], held[#held + 2] = 0, outbox_waiting(key, member)
    else
      pending[#pending + 1], pending[#pending + 2] = due == now and at_once or due, member
      if key and due <= now then
        heads[key] = member
        first[#first + 1], first[#first + 2] = key, member
      end
    end
    states[2 * n - 1], states[2 * n] = id, cmsgpack.pack(state)
  end
  if #first > 0 then redis.call('HSET', box.heads, unpack(first)) end
  redis.call('HSET', box.states, unpack(states))
  if #pending > 0 then redis.call('ZADD', box.pending, unpack(pending)) end
  if #held > 0 then redis.call('ZADD', box.held, unpack(held)) end
end

local function outbox_enqueue(keys, args)
  local box, now = outbox_at(keys[1]), outbox_now()
  local known = {}
  local sequence = outbox_sequence(box, now, #args / 5)
  -- Lua hands at most some thousand values to one call.
  for from = 1, #args, 2500 do outbox_add(box, args, from, math.min(from + 2499, #args), sequence, now, known) end
  return known
end
