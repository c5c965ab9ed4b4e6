-- Puts a dead letter back. When the entry is still in its stream it is given to its group again, and to that group only;
-- otherwise it is appended anew, and every group gets it.
--
-- KEYS[1]  stream
-- KEYS[2]  stream for dead letters
-- ARGV     1 group, 2 returned, 3 base (an idle time that says: due now), 4 id of the letter
-- returns  1, or 0 when there is no such letter

local stream, letters, group = KEYS[1], KEYS[2], ARGV[1]
local letter = redis.call('XRANGE', letters, ARGV[4], ARGV[4])[1]
if not letter then return 0 end
local fields, original = {}, nil
for i = 1, #letter[2], 2 do
  local name, value = letter[2][i], letter[2][i + 1]
  if name == 'waybill-id' then original = value end
  if string.sub(name, 1, 8) ~= 'waybill-' then
    fields[#fields + 1] = name
    fields[#fields + 1] = value
  end
end
if original and redis.call('XRANGE', stream, original, original)[1] then
  redis.call('XCLAIM', stream, group, ARGV[2], 0, original, 'IDLE', ARGV[3], 'RETRYCOUNT', 1, 'FORCE', 'JUSTID')
elseif #fields > 0 then
  redis.call('XADD', stream, '*', unpack(fields))
else
  return 0
end
redis.call('XDEL', letters, ARGV[4])
return 1
