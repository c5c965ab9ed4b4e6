-- Looks at the claims of messages and, where there is none, sets ours: whoever holds it handles the message.
--
-- KEYS     claims
-- ARGV     1 how long (ms) one lasts without being renewed, 2 our token for each, a line each, in one word because every
--          word costs
-- returns  1 when all are ours now; otherwise for each 1 when it is; or what it holds: 'done', 'partly …' or somebody's
--          token; or a list with why it cannot be read
-- Invariant: one that cannot be read leaves the others as they are. What refuses to set one would refuse all of them,
--          and ends the script with none set.

local answers, all, i = {}, true, 0
for token in string.gmatch(ARGV[2], '[^\n]+') do
  i = i + 1
  local claim, answer = KEYS[i], 1
  if not redis.call('SET', claim, token, 'PX', ARGV[1], 'NX') then
    local held = redis.pcall('GET', claim)
    if type(held) == 'table' then
      answer = { held.err }
    elseif held == token then
      redis.call('PEXPIRE', claim, ARGV[1])
    else
      answer = held
    end
  end
  answers[i] = answer
  all = all and answer == 1
end
return all and 1 or answers
