-- Adds events to one shard of the outbox. Runs on its own, or as a step of a unit of work's commit.
--
-- keys[1]  base name of the shard (see outbox-shared.lua)
-- args     for each event: event id, key or '', '1' when it has a key, when it is due (ms, or '' for now), header and data
-- returns  how many there were already: those are left as they are
-- Invariants: whoever calls it has seen every key to be of its type: nothing is written before. The entry is written
-- before its state, and its state before its place, so that nothing is lost to a script that stops halfway.

local function outbox_enqueue(keys, args)
  local box = outbox_at(keys[1])
  local now, known = outbox_now(), 0
  local next = outbox_sequence(box, now, #args / 5)
  for i = 1, #args, 5 do
    local id = args[i]
    if redis.call('HSETNX', box.entries, id, args[i + 4]) == 0 then
      known = known + 1
    else
      local sequence = next + (i - 1) / 5
      local due = tonumber(args[i + 3]) or now
      local key = args[i + 2] == '1' and args[i + 1]
      local state = { 'ready', 0, sequence, now, due, now, false, key, false }
      outbox_offer(box, outbox_member(sequence, id), state, due > now and 'scheduled' or 'ready', due, now)
    end
  end
  return known
end
