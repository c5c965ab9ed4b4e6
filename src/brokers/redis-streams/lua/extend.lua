-- Keeps entries alive that are being worked on. Only those that are still mine: a plain XCLAIM would take one back from
-- whoever has it now.
--
-- KEYS[1]  stream
-- ARGV     1 group, 2 me, 3… id and delivery count of each
-- returns  how many are mine

local stream, group, me = KEYS[1], ARGV[1], ARGV[2]
local kept = 0
for i = 3, #ARGV, 2 do
  if redis.call('XPENDING', stream, group, ARGV[i], ARGV[i], 1, me)[1] then
    redis.call('XCLAIM', stream, group, me, 0, ARGV[i], 'IDLE', 0, 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    kept = kept + 1
  end
end
return kept
