-- Gives back what a relay of this process claimed and does not know of, or could not give back: the answer to its claim
-- was lost, its session ended while nobody answered, or a failover has lost how it was settled. Nothing is spent, also
-- when the lease has run out meanwhile.
--
-- KEYS     all of the shard (see outbox-shared.lua)
-- ARGV     1 how many are unsettled at the caller, then of each: member, token; then tokens of claims, or of sessions: all
--          claims of one begin with it and a colon
-- returns  how many were given back
-- Invariant: what another has claimed since has another token, and is left alone.

local box, now = outbox_at(base), outbox_now()
outbox_check(box)
local held, wanted, last = {}, {}, 1 + tonumber(ARGV[1]) * 2
for i = 2, last, 2 do held[ARGV[i]] = ARGV[i + 1] end
for i = last + 1, #ARGV do wanted[ARGV[i]] = true end
local given, PAGE = 0, 500
local members = redis.call('ZRANGE', box.leased, 0, -1)
for from = 1, #members, PAGE do
  local ids = {}
  for i = from, math.min(from + PAGE - 1, #members) do ids[#ids + 1] = outbox_id(members[i]) end
  for n, packed in ipairs(redis.call('HMGET', box.states, unpack(ids))) do
    local member, state = members[from + n - 1], outbox_unpacked(packed)
    local token = state and state[S_STATE] == 'leased' and state[S_TOKEN]
    if token and held[member] ~= token and (wanted[token] or wanted[string.match(token, '^(.*):')]) then
      outbox_leave(box, member, state)
      state[S_AT], state[S_TOKEN] = now, false
      outbox_offer(box, member, state, 'ready', math.min(state[S_DUE], now), now)
      given = given + 1
    end
  end
end
return given
