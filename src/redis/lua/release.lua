-- Gives up marks that are ours, so that the messages can be handled again at once.
--
-- KEYS     marks
-- ARGV     1 our token
-- returns  how many were given up
-- Invariant: what was committed, or is another's by now, stays.

local released = 0
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then released = released + redis.call('DEL', KEYS[i]) end
end
return released
