-- Decides one intent that is due: its event is enqueued, unless the intent was revoked.
--
-- KEYS     all of the shard (see outbox-shared.lua, due-shared.lua)
-- ARGV     1 id of the intent, 2 the time (ms) it is decided for, 3 until when intents are decided (ms, or '' for now),
--          4 '1' when KEYS[2] is a key whose existence says that it was revoked, 5… the event as outbox-enqueue takes it;
--          its id is made of the intent's id and time
-- returns  'enqueued', 'already-enqueued', 'suppressed', 'not-due', 'unknown' or 'moved', and the time it has now
-- Invariants: the revocation is looked at in the same step that enqueues. An intent is decided once; deciding it again,
-- or recording and deciding it again for the same time, enqueues nothing.

local box, due, revoked, id = outbox_at(base), base .. ':due', base .. ':revoked', ARGV[1]
local now = outbox_now()
outbox_check(box)
local marked = redis.call('ZSCORE', revoked, id)
local at = redis.call('ZSCORE', due, id)
local known = redis.call('HEXISTS', box.entries, ARGV[5]) == 1
if at and tonumber(at) ~= tonumber(ARGV[2]) then return { 'moved', at } end
if known then
  redis.call('ZREM', due, id)
  return { 'already-enqueued', ARGV[2] }
end
if not at then return { 'unknown', '' } end
if tonumber(at) > math.min(tonumber(ARGV[3]) or now, now) then return { 'not-due', at } end
if marked or (ARGV[4] == '1' and redis.call('EXISTS', KEYS[2]) == 1) then
  redis.call('ZREM', due, id)
  return { 'suppressed', at }
end
outbox_enqueue({ base }, { unpack(ARGV, 5) })
redis.call('ZREM', due, id)
return { 'enqueued', at }
