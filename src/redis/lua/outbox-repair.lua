-- Looks at a page of one part of a shard, and puts right what does not belong together. No script of ours leaves such a
-- thing behind; one that was stopped halfway, a restore of half the keys or somebody's hand does.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 part (the name of the key), 2 cursor, 3 about how many, 4 the most attempts an entry has, 5 '1' when a key
--          goes on without its dead, 6 for how long (ms) a lease must have ended to be given up here
-- returns  the cursor to go on with ('0' at the end), how many entries were put back, how many places and states
--          without an entry were dropped, how many leases were given up, how many keys got their head back
-- Invariant: what belongs together is left alone, so that it can run beside everything else.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
local part, count, attempts, continues = ARGV[1], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1'
local given_up = now - tonumber(ARGV[6])
local restored, dropped, released, headed = 0, 0, 0, 0
local sets = { ready = 'pending', scheduled = 'pending', retrying = 'pending', leased = 'leased', held = 'held',
  dead = 'dead', published = 'sent' }

local function place_of(member, state)
  return state[S_STATE] == 'held' and outbox_waiting(state[S_KEY], member) or member
end

local function scan(command, key)
  local answer = redis.call(command, key, ARGV[2], 'COUNT', count)
  return answer[1], answer[2]
end

local cursor, found = '0', {}
if part == 'entries' then
  cursor, found = scan('HSCAN', box.entries)
  for i = 1, #found, 2 do
    local id = found[i]
    local state = outbox_unpacked(redis.call('HGET', box.states, id))
    if not state then
      state = outbox_anew(box, found[i + 1], now)
      outbox_offer(box, outbox_member(state[S_SEQUENCE], id), state, 'ready', now, now)
      restored = restored + 1
    else
      local member, word = outbox_member(state[S_SEQUENCE], id), state[S_STATE]
      local set = sets[word] or 'pending'
      if word == 'leased' and state[S_AT] <= given_up then
        outbox_expire(box, member, state, attempts, continues, now)
        released = released + 1
      elseif not redis.call('ZSCORE', box[set], place_of(member, state))
        or (word == 'retrying' and not redis.call('ZSCORE', box.retrying, member)) then
        restored = restored + 1
        if set == 'pending' then
          local kind = sets[word] and word or 'ready'
          outbox_offer(box, member, state, kind, state[S_DUE], now)
        else
          local scores = { leased = state[S_AT], held = 0, dead = state[S_SEQUENCE], sent = state[S_AT] }
          redis.call('ZADD', box[set], scores[set], place_of(member, state))
        end
      end
      if word == 'held' and redis.call('HEXISTS', box.heads, state[S_KEY]) == 0 then
        outbox_advance(box, state[S_KEY], now)
        headed = headed + 1
      end
    end
  end
elseif part == 'states' then
  cursor, found = scan('HSCAN', box.states)
  for i = 1, #found, 2 do
    if redis.call('HEXISTS', box.entries, found[i]) == 0 then
      local state = outbox_unpacked(found[i + 1])
      if state then
        outbox_remove(box, outbox_member(state[S_SEQUENCE], found[i]), state, now)
      else
        redis.call('HDEL', box.states, found[i])
      end
      dropped = dropped + 1
    end
  end
elseif part == 'heads' then
  cursor, found = scan('HSCAN', box.heads)
  for i = 1, #found, 2 do
    local key, member = found[i], found[i + 1]
    local state = outbox_state(box, member)
    local word = state and state[S_KEY] == key and state[S_SEQUENCE] == tonumber(string.sub(member, 1, 16))
      and state[S_STATE]
    if not word or word == 'published' or word == 'held' then
      redis.call('SREM', box.blocked, key)
      outbox_advance(box, key, now)
      headed = headed + 1
    elseif word == 'dead' then
      redis.call('SADD', box.blocked, key)
    end
  end
else
  cursor, found = scan('ZSCAN', box[part])
  for i = 1, #found, 2 do
    local place = found[i]
    local member = string.sub(place, -MEMBER_LENGTH)
    local state = outbox_state(box, member)
    local body = redis.call('HGET', box.entries, outbox_id(member))
    local right = state and outbox_member(state[S_SEQUENCE], outbox_id(member)) == member
      and place_of(member, state) == place
    if right and part == 'retrying' then
      right = state[S_STATE] == 'retrying'
    elseif right then
      right = sets[state[S_STATE]] == part
    end
    if not body then
      redis.call('ZREM', box[part], place)
      if state and right then outbox_remove(box, member, state, now) end
      dropped = dropped + 1
    elseif not state and part == 'pending' then
      outbox_restore(box, member, body, now)
      restored = restored + 1
    elseif not right then
      redis.call('ZREM', box[part], place)
      dropped = dropped + 1
    elseif state[S_KEY] and (part == 'leased' or (part == 'pending' and state[S_STATE] ~= 'scheduled')
      or (part == 'dead' and redis.call('SISMEMBER', box.blocked, state[S_KEY]) == 1))
      and redis.call('HSETNX', box.heads, state[S_KEY], member) == 1 then
      -- Before anything that is held can take its place.
      headed = headed + 1
    end
  end
end
return { cursor, restored, dropped, released, headed }
