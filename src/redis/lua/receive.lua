-- Looks at the marks of messages and, where there is none, sets ours: whoever holds it handles the message.
--
-- KEYS     marks
-- ARGV     1 how long (ms) a mark lasts without being renewed, 2… our token for each
-- returns  for each mark 1 when it is ours now; otherwise what it holds: 'done', 'partly …' or somebody's token; or a list
--          with why it cannot be told
-- Invariant: a mark that cannot be told leaves the others as they are. What refuses to set one would refuse all of them,
--          and ends the script with none set.

local answers = {}
for i = 1, #KEYS do
  local mark, token = KEYS[i], ARGV[i + 1]
  local answer = 1
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
end
return answers
