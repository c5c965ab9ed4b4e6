-- Settles entries that I own. Those that have another owner by now, or none, are left as they are and counted.
--
-- Asking for the owner of each entry costs three times as much as all the rest. So whoever takes an entry over notes
-- from whom, and only a consumer that is noted is asked about: any other owns what it was given. Other programs that
-- claim in this group take no notes. An entry that one of them has taken is then acknowledged once it is handled here,
-- which loses nothing; what is given back or dead is always asked about. So is everything once the stream was out of
-- reach: it may be another by now, with entries of the same ids.
--
-- KEYS[1]  stream
-- KEYS[2]  stream for dead letters
-- KEYS[3]  set of consumers from whom something was taken over
-- ARGV     1 group, 2 me, 3 returned, 4 '1' to delete what is acknowledged (where this is the only group), 5 '1' to ask
--          for the owner of each, 6 how many are done, 7 how many are given back, 8… the ids of the done; of those given
--          back: id, idle time that says when they are due (see claim.lua), delivery count; of the dead: id, reason, attempts
-- returns  how many were not mine
-- A dead letter has the fields of its entry. Lua hands at most some thousand values to one call: where there are more, they
-- are in one field, `waybill-fields`, each as its length, a colon and its bytes.
-- Invariant: an entry is acknowledged in the same step in which its dead letter is written.

local stream, letters = KEYS[1], KEYS[2]
local group, me, returned = ARGV[1], ARGV[2], ARGV[3]
local removes, done, back = ARGV[4] == '1', tonumber(ARGV[6]), tonumber(ARGV[7])
local asks = redis.call('SISMEMBER', KEYS[3], me) == 1 or ARGV[5] == '1'
local stale = 0

if removes then removes = redis.call('EXISTS', stream) == 1 and #redis.call('XINFO', 'GROUPS', stream) == 1 end

local function mine(id)
  return redis.call('XPENDING', stream, group, id, id, 1, me)[1]
end

local function ack(ids, from, to)
  for i = from, to, 1000 do
    local last = math.min(i + 999, to)
    stale = stale + (last - i + 1) - redis.call('XACK', stream, group, unpack(ids, i, last))
    if removes then redis.call('XDEL', stream, unpack(ids, i, last)) end
  end
end

local MOST_WORDS = 7000
local function packed(words)
  local parts = {}
  for i, word in ipairs(words) do parts[i] = #word .. ':' .. word end
  return table.concat(parts)
end

local at = 8
if asks then
  local owned = {}
  for i = at, at + done - 1 do
    if mine(ARGV[i]) then owned[#owned + 1] = ARGV[i] end
  end
  stale = done - #owned
  ack(owned, 1, #owned)
else
  ack(ARGV, at, at + done - 1)
end

at = at + done
-- Where a dead letter would be refused nothing is given back before: it would be taken again, and all this is sent again.
if at + back * 3 <= #ARGV then redis.call('XLEN', letters) end
for i = at, at + back * 3 - 1, 3 do
  if mine(ARGV[i]) then
    redis.call('XCLAIM', stream, group, returned, 0, ARGV[i], 'IDLE', ARGV[i + 1], 'RETRYCOUNT', ARGV[i + 2], 'JUSTID')
  else
    stale = stale + 1
  end
end

at = at + back * 3
-- A write that needs no memory: after it a server that is out of memory refuses nothing of this script. What nobody can
-- handle must not stay in front of what frees memory once it is handled.
if at <= #ARGV then redis.call('XACK', stream, group, '0-0') end
for i = at, #ARGV, 3 do
  local id = ARGV[i]
  if mine(id) then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    local fields = entry and entry[2] or {}
    if #fields > MOST_WORDS then fields = { 'waybill-fields', packed(fields) } end
    for _, word in ipairs({
      'waybill-reason', ARGV[i + 1], 'waybill-attempts', ARGV[i + 2],
      'waybill-id', id, 'waybill-stream', stream, 'waybill-group', group,
    }) do
      fields[#fields + 1] = word
    end
    redis.call('XADD', letters, '*', unpack(fields))
    ack({ id }, 1, 1)
  else
    stale = stale + 1
  end
end
return stale
