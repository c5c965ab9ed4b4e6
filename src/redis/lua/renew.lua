-- Renews claims that are still ours.
--
-- KEYS     claims
-- ARGV     1 how long (ms) from now, 2… the token of each
-- returns  the numbers of those that are not ours any more, whatever is in their place

local lost = {}
for i = 1, #KEYS do
  if redis.pcall('GET', KEYS[i]) == ARGV[i + 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[1])
  else
    lost[#lost + 1] = i
  end
end
return lost
