-- How a group stands. XINFO GROUPS returns the lag since 7.0; before, entries are counted, up to a limit.
--
-- KEYS[1]  stream
-- KEYS[2]  stream for dead letters
-- ARGV     1 group, 2 returned, 3 up to how many are counted
-- returns  length, lag, '1' when the lag is at least that, pending, of those given back, id of the oldest entry that was
--          not handled ('' for none), dead letters, milliseconds of the server's clock; or nothing without the group

local stream, letters, limit = KEYS[1], KEYS[2], tonumber(ARGV[3])
if redis.call('EXISTS', stream) == 0 then return {} end
local group
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local one = {}
  for i = 1, #flat, 2 do one[flat[i]] = flat[i + 1] end
  if one.name == ARGV[1] then group = one end
end
if not group then return {} end

local last = group['last-delivered-id']
-- The end of the range is inclusive on 6.0, so the entry given last may come first.
local waiting = redis.call('XRANGE', stream, last, '+', 'COUNT', 2)
local oldest = ''
for i = #waiting, 1, -1 do
  if waiting[i][1] ~= last then oldest = waiting[i][1] end
end
local lag, more = group.lag, '0'
if type(lag) ~= 'number' then
  lag = 0
  local from = last
  repeat
    local page = redis.call('XRANGE', stream, from, '+', 'COUNT', 500)
    for _, entry in ipairs(page) do
      if entry[1] ~= from then lag = lag + 1 end
    end
    if #page < 500 then break end
    from = page[#page][1]
    if lag >= limit then more = '1' end
  until more == '1'
end
local back = 0
if group.pending > 0 then
  local summary = redis.call('XPENDING', stream, ARGV[1])
  oldest = summary[2]
  for _, consumer in ipairs(summary[4]) do
    if consumer[1] == ARGV[2] then back = tonumber(consumer[2]) end
  end
end
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local dead = 0
if redis.call('EXISTS', letters) == 1 then dead = redis.call('XLEN', letters) end
return { redis.call('XLEN', stream), lag, more, group.pending, back, oldest, dead, now }
