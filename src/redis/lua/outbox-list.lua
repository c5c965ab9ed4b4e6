-- A page of the entries in one state, in their order.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 state, 2 how many at most, 3 score and 4 place of the last one seen, or '' to begin
-- returns  '1' when there may be more, and for each: score, place, and what outbox_shown says
-- Invariant: changes nothing. What is scheduled and due counts as ready: it can be claimed.

local box, now = outbox_at(base), outbox_now()
local word, page, score, place = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local found, visited, more = {}, 0, '0'

local function show(at, where, member)
  local state = outbox_state(box, member)
  if not state then return end
  found[#found + 1] = { tostring(at), where, unpack(outbox_shown(box, member, state)) }
end

if word == 'held' then
  local from = place == '' and '-' or '(' .. place
  local members = redis.call('ZRANGEBYLEX', box.held, from, '+', 'LIMIT', 0, page)
  for _, waiting in ipairs(members) do show('0', waiting, string.sub(waiting, -MEMBER_LENGTH)) end
  if #members == page then more = '1' end
  return { more, found }
end

local set, low, high = box[word == 'published' and 'sent' or word], '-inf', '+inf'
if word == 'ready' then set, high = box.pending, now end
if word == 'scheduled' then set, low = box.pending, '(' .. string.format('%.0f', now) end
local newest = word == 'published'
if score ~= '' then
  if newest then high = score else low = score end
end
local offset = 0
repeat
  local members
  if newest then
    members = redis.call('ZREVRANGEBYSCORE', set, high, low, 'WITHSCORES', 'LIMIT', offset, page)
  else
    members = redis.call('ZRANGEBYSCORE', set, low, high, 'WITHSCORES', 'LIMIT', offset, page)
  end
  for i = 1, #members, 2 do
    local member, at = members[i], members[i + 1]
    local seen = score ~= '' and tonumber(at) == tonumber(score)
    if newest then seen = seen and member >= place else seen = seen and member <= place end
    local other = set == box.pending and redis.call('ZSCORE', box.retrying, member)
    if not seen and not other then
      if #found == page then
        more = '1'
        break
      end
      show(at, member, member)
    end
  end
  offset, visited = offset + page, visited + #members / 2
until #members < page * 2 or more == '1'
return { more, found }
