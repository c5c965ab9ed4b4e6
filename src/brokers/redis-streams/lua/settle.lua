-- Settles entries that I own. Those that have another owner by now, or none, are left as they are and counted.
--
-- KEYS[1]  stream
-- KEYS[2]  stream for dead letters
-- ARGV     1 group, 2 me, 3 returned, 4 '1' to delete what is acknowledged (where this is the only group),
--          5 how many are done, 6 how many are given back, 7 their ids; then of those given back: id, idle time that
--          says when they are due (see claim.lua), delivery count; then of the dead: id, reason, attempts
-- returns  how many were not mine
-- Invariant: an entry is acknowledged in the same step in which its dead letter is written.

local stream, letters = KEYS[1], KEYS[2]
local group, me, returned = ARGV[1], ARGV[2], ARGV[3]
local removes, done, back = ARGV[4] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
local stale, acked = 0, {}

local function mine(id)
  if redis.call('XPENDING', stream, group, id, id, 1, me)[1] then return true end
  stale = stale + 1
  return false
end

local at = 7
for i = at, at + done - 1 do
  if mine(ARGV[i]) then acked[#acked + 1] = ARGV[i] end
end
at = at + done
for i = at, at + back * 3 - 1, 3 do
  if mine(ARGV[i]) then
    redis.call('XCLAIM', stream, group, returned, 0, ARGV[i], 'IDLE', ARGV[i + 1], 'RETRYCOUNT', ARGV[i + 2], 'JUSTID')
  end
end
at = at + back * 3
for i = at, #ARGV, 3 do
  local id = ARGV[i]
  if mine(id) then
    local entry = redis.call('XRANGE', stream, id, id)[1]
    local fields = entry and entry[2] or {}
    for _, word in ipairs({
      'waybill-reason', ARGV[i + 1], 'waybill-attempts', ARGV[i + 2],
      'waybill-id', id, 'waybill-stream', stream, 'waybill-group', group,
    }) do
      fields[#fields + 1] = word
    end
    redis.call('XADD', letters, '*', unpack(fields))
    acked[#acked + 1] = id
  end
end

if #acked > 0 and removes then removes = #redis.call('XINFO', 'GROUPS', stream) == 1 end
for i = 1, #acked, 1000 do
  local last = math.min(i + 999, #acked)
  redis.call('XACK', stream, group, unpack(acked, i, last))
  if removes then redis.call('XDEL', stream, unpack(acked, i, last)) end
end
return stale
