-- Looks at the mark of a message and, when there is none, sets ours: whoever holds it handles the message.
--
-- KEYS[1]  mark
-- ARGV     1 our token, 2 how long (ms) the mark lasts without being renewed
-- returns  'new' when the mark is ours now, otherwise what it holds: 'done', 'partly …' or somebody's token

local mark = redis.call('GET', KEYS[1])
if mark and mark ~= ARGV[1] then return mark end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'new'
