-- What a person does with a page of entries, and its line in the audit.
--
-- KEYS     all of the shard (see outbox-shared.lua); beside its keys there are :audits (hash, id → when and what)
--          and :audit-counts (hash, id → how many)
-- ARGV     1 action ('rearm', 'discard-dead', 'discard-pending', 'replay', 'replay-new'), 2 id of the line ('' for a new
--          one), 3 the line, then the members; for 'replay-new' of each: member, new event id, new header
-- returns  how many were changed, id of the line
-- Invariants: an entry that is no longer in a state the action may touch is left alone. What was changed and the count
-- in the audit are one step. A dead entry that is re-armed keeps its place in the order of its key; one that is
-- replayed goes behind what is pending.

local box, now = outbox_at(base), outbox_now()
local action, id = ARGV[1], ARGV[2]
outbox_check(box)
redis.call('HLEN', base .. ':audits')
redis.call('HLEN', base .. ':audit-counts')
local touches = {
  rearm = 'dead', ['discard-dead'] = 'dead', ['discard-pending'] = 'ready scheduled leased held retrying',
  replay = 'published', ['replay-new'] = 'published',
}
local width, changed = action == 'replay-new' and 3 or 1, 0

for i = 4, #ARGV, width do
  local member = ARGV[i]
  local state = outbox_state(box, member)
  if state and state[S_SEQUENCE] == tonumber(string.sub(member, 1, 16))
    and string.find(touches[action], state[S_STATE], 1, true) then
    changed = changed + 1
    if action == 'rearm' then
      outbox_leave(box, member, state)
      state[S_ATTEMPTS], state[S_AT] = 0, now
      if state[S_KEY] then redis.call('SREM', box.blocked, state[S_KEY]) end
      outbox_offer(box, member, state, 'retrying', now, now)
    elseif action == 'replay' then
      outbox_leave(box, member, state)
      state[S_ATTEMPTS], state[S_AT], state[S_SEQUENCE] = 0, now, outbox_sequence(box, now)
      outbox_offer(box, outbox_member(state[S_SEQUENCE], outbox_id(member)), state, 'ready', now, now)
    elseif action == 'replay-new' then
      local body = redis.call('HGET', box.entries, outbox_id(member)) or '-'
      local _, from, to = outbox_parts(body)
      local sequence = outbox_sequence(box, now)
      redis.call('HSET', box.entries, ARGV[i + 1], string.sub(body, 1, from - 1) .. ARGV[i + 2] .. string.sub(body, to + 1))
      local copy = { 'ready', 0, sequence, now, now, now, false, state[S_KEY], false }
      outbox_offer(box, outbox_member(sequence, ARGV[i + 1]), copy, 'ready', now, now)
    else
      outbox_remove(box, member, state, now)
    end
  end
end
if id == '' then id = string.format('%.0f', outbox_sequence(box, now)) end
redis.call('HSETNX', base .. ':audits', id, string.format('%.0f ', now) .. ARGV[3])
redis.call('HINCRBY', base .. ':audit-counts', id, changed)
return { changed, id }
