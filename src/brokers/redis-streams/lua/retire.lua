-- Removes consumers that own nothing and have not been heard of for long: every process that was killed leaves one.
--
-- KEYS[1]  stream
-- ARGV     1 group, 2 me, 3 idle (ms), 4 '' or the one consumer to look at, however long it was heard of
-- returns  how many were removed
-- Invariant: a consumer that owns entries stays.

local stream, group, me, idle, only = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local removed = 0
for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local consumer = {}
  for i = 1, #flat, 2 do consumer[flat[i]] = flat[i + 1] end
  local unused = consumer.pending == 0 and consumer.name ~= me
  if unused and (consumer.name == only or (only == '' and consumer.idle >= idle)) then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer.name)
    removed = removed + 1
  end
end
return removed
