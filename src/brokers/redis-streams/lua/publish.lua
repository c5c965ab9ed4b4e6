-- Appends messages to one stream, in order, and stops at the first that the server refuses: what comes after it in the
-- stream may be of the same key. Memory is checked before the first of them only, so a batch is not cut in two by it.
--
-- KEYS[1]  stream
-- ARGV[1]  greatest length of the stream, after `~` when about, or `=` when exactly so many; or '' for none
-- ARGV[2]  how many strings (fields and values) each message has, or 0: then each begins with its own number
-- ARGV[3…] the strings
-- returns  how many were appended; and the error, when not all were

local stream, width = KEYS[1], tonumber(ARGV[2])
local how, limit = string.sub(ARGV[1], 1, 1), string.sub(ARGV[1], 2)
local appended, at, last = 0, 3, #ARGV
while at <= last do
  local count = width
  if count == 0 then
    count = tonumber(ARGV[at])
    at = at + 1
  end
  local answer
  if limit ~= '' then
    answer = redis.pcall('XADD', stream, 'MAXLEN', how, limit, '*', unpack(ARGV, at, at + count - 1))
  elseif count == 2 then
    answer = redis.pcall('XADD', stream, '*', ARGV[at], ARGV[at + 1])
  else
    answer = redis.pcall('XADD', stream, '*', unpack(ARGV, at, at + count - 1))
  end
  if type(answer) == 'table' and answer.err then return { appended, answer.err } end
  appended = appended + 1
  at = at + count
end
return { appended }
