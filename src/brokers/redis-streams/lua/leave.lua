-- Gives back a page of what a consumer still owns, as if it had never been taken, and removes the consumer when there is
-- nothing left.
--
-- KEYS[1]  stream
-- ARGV     1 group, 2 consumer, 3 returned, 4 base (an idle time that says: due now), 5 how many at most
-- returns  how many were given back
-- Invariant: a consumer that owns entries is not removed; XGROUP DELCONSUMER would drop them.

local stream, group, consumer, returned = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local page = tonumber(ARGV[5])
local pending = redis.call('XPENDING', stream, group, '-', '+', page, consumer)
for _, one in ipairs(pending) do
  redis.call('XCLAIM', stream, group, returned, 0, one[1], 'IDLE', ARGV[4], 'RETRYCOUNT', one[4], 'JUSTID')
end
if #redis.call('XPENDING', stream, group, '-', '+', 1, consumer) == 0 then
  redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
end
return #pending
