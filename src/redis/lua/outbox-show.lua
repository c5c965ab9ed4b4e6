-- One entry, and all of it.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV[1]  event id
-- returns  nothing, or its score and place in the list of its state, what outbox_shown says, and the entry
-- Invariant: changes nothing.

local box = outbox_at(base)
local state = outbox_unpacked(redis.call('HGET', box.states, ARGV[1]))
if not state then return {} end
local member, word = outbox_member(state[S_SEQUENCE], ARGV[1]), state[S_STATE]
local score, place = '0', member
if word == 'held' then
  place = outbox_waiting(state[S_KEY], member)
else
  local set = ({ leased = 'leased', dead = 'dead', published = 'sent', retrying = 'retrying' })[word] or 'pending'
  score = redis.call('ZSCORE', box[set], member) or '0'
end
return { score, place, outbox_shown(box, member, state), redis.call('HGET', box.entries, ARGV[1]) or '' }
