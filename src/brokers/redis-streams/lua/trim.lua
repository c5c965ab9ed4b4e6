-- Deletes the oldest entries of a stream that every group has acknowledged. XTRIM MINID came with 6.2, so a page of them
-- is deleted one by one; a block of the stream is freed when all of it is.
--
-- KEYS[1]  stream
-- ARGV     1 how many at most, 2 how long (ms) an entry is kept in any case
-- returns  how many were deleted
-- The server's clock counts only where entries are kept for a time: one that went back would keep all of them till then.
-- Invariant: an entry that some group has not been given, or has not acknowledged, stays. Without a group all of it does.

local stream, page, keep = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
if redis.call('EXISTS', stream) == 0 then return 0 end

local function less(a, b)
  local am, as = string.match(a, '^(%d+)-(%d+)$')
  local bm, bs = string.match(b, '^(%d+)-(%d+)$')
  if #am ~= #bm then return #am < #bm end
  if am ~= bm then return am < bm end
  if #as ~= #bs then return #as < #bs end
  return as < bs
end

local newest = '18446744073709551615-18446744073709551615'
if keep > 0 then
  local time = redis.call('TIME')
  newest = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) - keep) .. '-0'
end
-- Before this one all may go; `within` says whether it may itself.
local bound, within = newest, false
local groups = redis.call('XINFO', 'GROUPS', stream)
if #groups == 0 then return 0 end
for _, flat in ipairs(groups) do
  local group = {}
  for i = 1, #flat, 2 do group[flat[i]] = flat[i + 1] end
  local first, whole = group['last-delivered-id'], true
  if group.pending > 0 then
    first, whole = redis.call('XPENDING', stream, group.name)[2], false
  end
  if less(first, bound) or (first == bound and not whole) then bound, within = first, whole end
end

local ids = {}
for _, entry in ipairs(redis.call('XRANGE', stream, '-', bound, 'COUNT', page)) do
  if within or entry[1] ~= bound then ids[#ids + 1] = entry[1] end
end
for i = 1, #ids, 1000 do redis.call('XDEL', stream, unpack(ids, i, math.min(i + 999, #ids))) end
return #ids
