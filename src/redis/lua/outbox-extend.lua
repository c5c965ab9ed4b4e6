-- Renews the leases of what the caller has not settled, as far as it is still its own.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 lease (ms), then of each: member, token
-- returns  how many are claimed and not the caller's any more
-- Invariant: a lease that has ended, or that another has, is left as it is.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
-- A write that needs no memory: after it a server that is out of memory refuses nothing of this script, and what is being
-- published stays ours.
redis.call('ZREM', box.leased, '')
local lost = 0

-- Claims of one session have the same beginning: what was settled meanwhile, and claimed again by it, is not lost.
local function session_of(token)
  return string.match(tostring(token), '^(.*):')
end

for i = 2, #ARGV, 2 do
  local state = outbox_state(box, ARGV[i])
  if state and state[S_STATE] == 'leased' then
    local token = ARGV[i + 1]
    if state[S_TOKEN] == token and state[S_AT] > now then
      state[S_AT] = now + tonumber(ARGV[1])
      outbox_save(box, ARGV[i], state)
      redis.call('ZADD', box.leased, state[S_AT], ARGV[i])
    elseif state[S_TOKEN] == token or session_of(state[S_TOKEN]) ~= session_of(token) then
      lost = lost + 1
    end
  end
end
return lost
