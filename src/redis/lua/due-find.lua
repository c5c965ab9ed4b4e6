-- Intents that are due, the earliest first.
--
-- KEYS     all of the shard (see outbox-shared.lua, due-shared.lua)
-- ARGV     1 until when (ms, or '' for now), 2 how many at most, 3 time and 4 id of the last one seen, or ''
-- returns  id and time of each
-- Invariant: changes nothing.

local now = outbox_now()
local cutoff = math.min(tonumber(ARGV[1]) or now, now)
local page, at, last = tonumber(ARGV[2]), ARGV[3], ARGV[4]
local found, offset = {}, 0
repeat
  local members = redis.call('ZRANGEBYSCORE', base .. ':due', at == '' and '-inf' or at, cutoff, 'WITHSCORES',
    'LIMIT', offset, page)
  for i = 1, #members, 2 do
    local seen = at ~= '' and tonumber(members[i + 1]) == tonumber(at) and members[i] <= last
    if not seen and #found < page * 2 then
      found[#found + 1] = members[i]
      found[#found + 1] = members[i + 1]
    end
  end
  offset = offset + page
until #members < page * 2 or #found >= page * 2
return found
