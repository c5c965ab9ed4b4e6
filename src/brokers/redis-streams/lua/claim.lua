-- Takes pending entries over: those that were given back and are due, and those whose owner has let them lie. One that
-- is no longer in the stream was trimmed before it was handled: it is acknowledged and reported.
--
-- Entries that were given back belong to the consumer `returned`. Their idle time says when they are due: it is `base`
-- minus what is left of their delay, so that any delay can be written down and outlives whoever wrote it.
--
-- KEYS[1]  stream
-- KEYS[2]  set of consumers from whom something was taken over (see settle.lua); kept for a week, so that one who was
--          suspended finds himself in it
-- ARGV     1 group, 2 me, 3 returned, 4 base (ms), 5 idle (ms) after which an owner counts as gone, 6 what taking over
--          from an owner adds to the delivery count, 7 how many at most, 8 owner to take from ('' for everybody),
--          9 id to begin with, 10 how many pending entries to look at, 11 how many bytes at most (but at least one entry),
--          12… id and delivery count of those to look at instead: I gave them back with that count, and know by my own
--          clock that they are due
-- returns  the id to go on with ('' at the end), a list of id, fields, delivery count and 1 when its owner was gone, and
--          the ids of lost ones
-- Invariant: what I own already is left alone, so that nothing unsettled is given twice.

local stream, group, me, returned = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local base, idle, charge, limit = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local owner, start, page, room = ARGV[8], ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])

local pending = {}
if #ARGV > 11 then
  for i = 12, #ARGV, 2 do
    local found = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1)[1]
    -- The server's clock may have gone back: then it would call them due later by as much.
    if found and found[2] == returned and found[4] == tonumber(ARGV[i + 1]) then
      found[3] = base
      pending[#pending + 1] = found
    end
  end
elseif owner == '' then
  pending = redis.call('XPENDING', stream, group, start, '+', page)
else
  pending = redis.call('XPENDING', stream, group, start, '+', page, owner)
end

local entries, lost, following, noted = {}, {}, '', nil
if #ARGV == 11 and #pending == page then following = pending[page][1] end
for _, one in ipairs(pending) do
  local id, holder, since, count = one[1], one[2], one[3], one[4]
  local due, gone = false, 0
  if holder == me then
    due = false
  elseif holder == returned then
    due = since >= base
  else
    due, gone = since >= idle, charge
    count = count + charge
  end
  if due then
    if #entries >= limit * 4 or room <= 0 then
      following = id
      break
    end
    local notes = holder ~= returned and holder ~= noted
    -- A key of another type fails here, while the entry is not mine yet.
    if notes then redis.call('SISMEMBER', KEYS[2], holder) end
    local entry = redis.call('XCLAIM', stream, group, me, 0, id, 'RETRYCOUNT', count)[1]
    if not entry then entry = redis.call('XRANGE', stream, id, id)[1] end
    if notes then
      redis.call('SADD', KEYS[2], holder)
      redis.call('EXPIRE', KEYS[2], 604800)
      noted = holder
    end
    if entry then
      entries[#entries + 1] = id
      entries[#entries + 1] = entry[2]
      entries[#entries + 1] = count
      entries[#entries + 1] = gone
      for _, word in ipairs(entry[2]) do room = room - #word end
    else
      redis.call('XACK', stream, group, id)
      lost[#lost + 1] = id
    end
  end
end
return { following, entries, lost }
