-- Intents: events to publish when a time has come, unless it was revoked before. They live in the shards of the outbox,
-- so that deciding and enqueueing are one step. Beside the keys of the shard (see outbox-shared.lua):
--
--   :due       sorted set, id of the intent → when it is due (ms)
--   :revoked   sorted set, id → until when the revocation is remembered (ms)
--
-- Each function is a step of a unit of work's commit, and a script of its own.

-- keys[1] base name; args: id and time (ms) of each. Returns how many were new. Recorded again it moves to the new time.
local function due_record(keys, args)
  local added = 0
  for i = 1, #args, 2 do added = added + redis.call('ZADD', keys[1] .. ':due', args[i + 1], args[i]) end
  return added
end

-- keys[1] base name; args: id and time (ms) of each. Returns how many there were; what is unknown stays unknown.
local function due_reschedule(keys, args)
  local moved = 0
  for i = 1, #args, 2 do
    if redis.call('ZSCORE', keys[1] .. ':due', args[i]) then
      redis.call('ZADD', keys[1] .. ':due', 'XX', args[i + 1], args[i])
      moved = moved + 1
    end
  end
  return moved
end

-- keys[1] base name; args: ids. Returns how many there were. Nothing will come of them.
local function due_cancel(keys, args)
  local gone = 0
  for i = 1, #args do gone = gone + redis.call('ZREM', keys[1] .. ':due', args[i]) end
  return gone
end

-- keys[1] base name; args: for how long it is remembered (ms), then ids. Returns how many are still to be decided.
local function due_revoke(keys, args)
  local due, revoked, open = keys[1] .. ':due', keys[1] .. ':revoked', 0
  redis.call('ZCARD', due)
  local until_then = outbox_now() + tonumber(args[1])
  for i = 2, #args do
    local at = redis.call('ZSCORE', due, args[i])
    if at then open = open + 1 end
    -- In any case until it has been decided.
    redis.call('ZADD', revoked, math.max(until_then, (tonumber(at) or 0) + tonumber(args[1])), args[i])
  end
  return open
end
