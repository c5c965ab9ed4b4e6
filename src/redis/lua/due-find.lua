-- Intents that are due, the earliest first.
--
-- KEYS     all of the shard (see outbox-shared.lua, due-shared.lua)
-- ARGV     1 until when (ms, or '' for now), 2 how many at most, 3 time and 4 id of the last one seen, or ''
-- returns  id and time of each
-- Invariant: changes nothing.

local due, now = base .. ':due', outbox_now()
local cutoff = math.min(tonumber(ARGV[1]) or now, now)
local page, at, last = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local found, offset = {}, 0

-- While the last one is still there, what follows it is found at once, however many have its time.
if at ~= '' and tonumber(redis.call('ZSCORE', due, last) or '') == tonumber(at) then
  local rank = redis.call('ZRANK', due, last)
  local members = redis.call('ZRANGE', due, rank + 1, rank + page, 'WITHSCORES')
  for i = 1, #members, 2 do
    if tonumber(members[i + 1]) > cutoff then break end
    found[i], found[i + 1] = members[i], members[i + 1]
  end
  return found
end

-- Redis sorts ids by their bytes. Lua compares text in the order of the server's language.
local function is_behind(a, b)
  for i = 1, math.min(#a, #b) do
    local one, other = string.byte(a, i), string.byte(b, i)
    if one ~= other then return one > other end
  end
  return #a > #b
end

repeat
  local members = redis.call('ZRANGEBYSCORE', due, at == '' and '-inf' or at, cutoff, 'WITHSCORES', 'LIMIT', offset, page)
  for i = 1, #members, 2 do
    local seen = at ~= '' and tonumber(members[i + 1]) == tonumber(at) and not is_behind(members[i], last)
    if not seen and #found < page * 2 then
      found[#found + 1] = members[i]
      found[#found + 1] = members[i + 1]
    end
  end
  offset = offset + page
until #members < page * 2 or #found >= page * 2
return found
