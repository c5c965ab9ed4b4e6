-- Releases claims that are ours, so that the messages can be handled again at once.
--
-- KEYS     claims
-- ARGV     our token for each
-- returns  how many were given up
-- Invariant: what was committed, or is another's by now, stays, of whatever type it is.

local released = 0
for i = 1, #KEYS do
  if redis.pcall('GET', KEYS[i]) == ARGV[i] then released = released + redis.call('DEL', KEYS[i]) end
end
return released
