-- Keeps entries alive that are being worked on. Only those that are still mine: a plain XCLAIM would take one back from
-- whoever has it now.
--
-- KEYS[1]  stream
-- ARGV     1 group, 2 me, 3 returned, 4… id and delivery count of each
-- returns  how many others have by now

local stream, group, me, returned = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local taken = 0
for i = 4, #ARGV, 2 do
  local found = redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1)[1]
  if found and found[2] == me then
    redis.call('XCLAIM', stream, group, me, 0, ARGV[i], 'IDLE', 0, 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  elseif found and found[2] ~= returned then
    taken = taken + 1
  end
end
return taken
