-- Looks at the marks of messages and, where there is none, sets ours: whoever holds it handles the message.
--
-- KEYS     marks
-- ARGV     1 how long (ms) a mark lasts without being renewed, 2 our token for each, a line each, in one word because every
--          word costs
-- returns  1 when all are ours now; otherwise for each mark 1 when it is; or what it holds: 'done', 'partly …' or somebody's
--          token; or a list with why it cannot be told
-- Invariant: a mark that cannot be told leaves the others as they are. What refuses to set one would refuse all of them,
--          and ends the script with none set.

local answers, all, i = {}, true, 0
for token in string.gmatch(ARGV[2], '[^\n]+') do
  i = i + 1
  local mark, answer = KEYS[i], 1
  if not redis.call('SET', mark, token, 'PX', ARGV[1], 'NX') then
    local held = redis.pcall('GET', mark)
    if type(held) == 'table' then
      answer = { held.err }
    elseif held == token then
      redis.call('PEXPIRE', mark, ARGV[1])
    else
      answer = held
    end
  end
  answers[i] = answer
  all = all and answer == 1
end
return all and 1 or answers
