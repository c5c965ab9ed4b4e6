-- Looks at the marks of messages and, where there is none, sets ours: whoever holds it handles the message.
--
-- KEYS     marks
-- ARGV     1 how long (ms) a mark lasts without being renewed, 2… our token for each
-- returns  for each mark 1 when it is ours now; otherwise what it holds: 'done', 'partly …' or somebody's token; or a list
--          with why it cannot be told
-- Invariant: a mark that cannot be told leaves the others as they are.

local function receive(mark, token)
  if redis.call('SET', mark, token, 'PX', ARGV[1], 'NX') then return 1 end
  local held = redis.call('GET', mark)
  if held ~= token then return held end
  redis.call('PEXPIRE', mark, ARGV[1])
  return 1
end

local answers = {}
for i = 1, #KEYS do
  local ok, answer = pcall(receive, KEYS[i], ARGV[i + 1])
  answers[i] = ok and answer or { tostring(type(answer) == 'table' and answer.err or answer) }
end
return answers
