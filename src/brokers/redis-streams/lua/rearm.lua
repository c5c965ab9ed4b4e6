-- Puts a dead letter back, or drops it. When the entry is still in its stream it is given to its group again, and to that
-- group only; otherwise it is appended anew, and every group gets it.
--
-- KEYS[1]  stream
-- KEYS[2]  stream for dead letters, which others may share
-- ARGV     1 group, 2 returned, 3 base (an idle time that says: due now), 4 id of the dead letter, 5 '1' to drop it
-- returns  1; 0 when this group has no such dead letter of this stream; 2 when it has more fields than a script takes
-- Invariant: a dead letter of another stream or group is left alone.

local stream, letters, group = KEYS[1], KEYS[2], ARGV[1]
local letter = redis.call('XRANGE', letters, ARGV[4], ARGV[4])[1]
if not letter then return 0 end
local fields, said = {}, {}
for i = 1, #letter[2], 2 do
  local name, value = letter[2][i], letter[2][i + 1]
  if string.sub(name, 1, 8) == 'waybill-' then
    said[string.sub(name, 9)] = value
  else
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
if said.stream ~= stream or said.group ~= group then return 0 end
if ARGV[5] ~= '1' then
  if said.id and redis.call('XRANGE', stream, said.id, said.id)[1] then
    redis.call('XCLAIM', stream, group, ARGV[2], 0, said.id, 'IDLE', ARGV[3], 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
  elseif said.fields then
    return 2
  elseif #fields > 0 then
    redis.call('XADD', stream, '*', unpack(fields))
  else
    return 0
  end
end
redis.call('XDEL', letters, ARGV[4])
return 1
