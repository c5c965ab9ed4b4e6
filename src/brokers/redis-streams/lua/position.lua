-- From where a group would have to read so that nothing is missed, were it deleted and made again.
--
-- KEYS[1]  stream
-- ARGV     1 group
-- returns  the last id of the stream ('' without one), the id of the oldest pending entry or else the one given last ('' without
--          the group), '1' when it is pending, milliseconds of the server's clock

local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
if redis.call('EXISTS', KEYS[1]) == 0 then return { '', '', '0', now } end
local last, info = '', redis.call('XINFO', 'STREAM', KEYS[1])
for i = 1, #info, 2 do
  if info[i] == 'last-generated-id' then last = info[i + 1] end
end
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  if group.name == ARGV[1] then
    if group.pending == 0 then return { last, group['last-delivered-id'], '0', now } end
    return { last, redis.call('XPENDING', KEYS[1], ARGV[1])[2], '1', now }
  end
end
return { last, '', '0', now }
