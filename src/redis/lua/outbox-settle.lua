-- Settles what the caller has claimed. What is no longer its own, because the lease ended or another has it, is left
-- as it is and counted.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 '1' to remove what is published, 2 '1' when a key goes on without its dead, 3 how many are done, then those:
--          member, token; then of the others: member, token, kind ('retry', 'dead', 'release'), after (ms), '1' when an
--          attempt is charged, error
-- returns  how many were stale
-- Invariant: fenced by the token and by the end of the lease: a settlement counts once, and only its claimer's.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
local deletes, continues, done = ARGV[1] == '1', ARGV[2] == '1', tonumber(ARGV[3])
local stale = 0

local function mine(state, token)
  return state and state[S_STATE] == 'leased' and state[S_TOKEN] == token and state[S_AT] > now
end

-- In pages: what is done is the most, and each call costs.
local function publish(from, to)
  local ids = {}
  for i = from, to, 2 do ids[#ids + 1] = outbox_id(ARGV[i]) end
  local packed = redis.call('HMGET', box.states, unpack(ids))
  local leased, sent, states, gone, keys, first = {}, {}, {}, {}, {}, {}
  local seen = {}
  for n, id in ipairs(ids) do
    local member, state = ARGV[from + (n - 1) * 2], outbox_unpacked(packed[n])
    if seen[id] or not mine(state, ARGV[from + (n - 1) * 2 + 1]) then
      stale = stale + 1
    else
      seen[id] = true
      leased[#leased + 1] = member
      if state[S_KEY] then keys[#keys + 1], first[#first + 1] = state[S_KEY], member end
      if deletes then
        gone[#gone + 1] = id
      else
        state[S_STATE], state[S_AT], state[S_TOKEN], state[S_ERROR] = 'published', now, false, false
        sent[#sent + 1] = now
        sent[#sent + 1] = member
        states[#states + 1] = id
        states[#states + 1] = cmsgpack.pack(state)
      end
    end
  end
  if #leased == 0 then return end
  redis.call('ZREM', box.leased, unpack(leased))
  if deletes then
    redis.call('HDEL', box.states, unpack(gone))
    redis.call('HDEL', box.entries, unpack(gone))
  else
    redis.call('HSET', box.states, unpack(states))
    redis.call('ZADD', box.sent, unpack(sent))
  end
  if #keys == 0 then return end
  -- No member is the head of two keys, and no key has two heads.
  local open = {}
  for n, head in ipairs(redis.call('HMGET', box.heads, unpack(keys))) do
    if head == first[n] then open[#open + 1] = keys[n] end
  end
  outbox_advance_all(box, open, now)
end

local last = 3 + done * 2
for from = 4, last, 1000 do publish(from, math.min(from + 999, last)) end

for i = last + 1, #ARGV, 6 do
  local member, kind = ARGV[i], ARGV[i + 2]
  local state = outbox_state(box, member)
  if not mine(state, ARGV[i + 1]) then
    stale = stale + 1
  elseif kind == 'dead' then
    state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1
    outbox_mark_dead(box, member, state, ARGV[i + 5], continues, now)
  else
    outbox_leave(box, member, state)
    state[S_AT], state[S_TOKEN] = now, false
    if kind == 'retry' then
      if ARGV[i + 4] == '1' then state[S_ATTEMPTS] = state[S_ATTEMPTS] + 1 end
      state[S_ERROR] = ARGV[i + 5]
      outbox_offer(box, member, state, 'retrying', now + tonumber(ARGV[i + 3]), now)
    else
      outbox_offer(box, member, state, 'ready', math.min(state[S_DUE], now), now)
    end
  end
end
return stale
