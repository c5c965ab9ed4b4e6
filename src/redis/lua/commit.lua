-- Commits a unit of work: looks first, then writes, and says what it did. Step files (`step-*.lua`) stand before this
-- text and fill the table `steps`.
--
-- KEYS     the marks of the inbox that the unit holds, then every other key it touches; one slot
-- ARGV     1 token of the marks, 2 how many marks, 3 how long (ms) a done mark is kept, 4 '1' to try first whether the
--          server takes writes that need memory, 5 how many keys are checked, 6 how many steps; key and type of each
--          check; of each step: name ('' for a command), how many keys, how many words, the keys, the words
-- returns  one of
--          'committed', the answers of named steps in their order
--          'fenced', number of the mark: it is not ours (any more); nothing was done
--          'wrong type', key, what it should hold, what it holds; nothing was done
--          'refused', number of the step, why; nothing was done
--          'failed', number of the step, why, '1' when it may itself have done something; those before it were done
-- Invariant: without the marks nothing is written. A mark becomes `done` in the same step as the work, and last, so that
--          whatever stops the script leaves no mark that hides work undone. Work done in part leaves `partly …` there:
--          nobody does it again without having looked.

local token, marks, retention = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local checks, count = tonumber(ARGV[5]), tonumber(ARGV[6])

for i = 1, marks do
  if redis.call('GET', KEYS[i]) ~= token then return { 'fenced', i } end
end

local at = 7
for _ = 1, checks do
  local found = redis.call('TYPE', ARGV[at]).ok
  if found ~= 'none' and found ~= ARGV[at + 1] then return { 'wrong type', ARGV[at], ARGV[at + 1], found } end
  at = at + 2
end

local function slice(from, length)
  local part = {}
  for i = 1, length do part[i] = ARGV[from + i - 1] end
  return part
end

local named = {}
local cursor = at
for i = 1, count do
  local name, keys, words = ARGV[cursor], tonumber(ARGV[cursor + 1]), tonumber(ARGV[cursor + 2])
  if name ~= '' then
    local step = { steps[name], slice(cursor + 3, keys), slice(cursor + 3 + keys, words) }
    if not step[1] then return { 'refused', i, 'there is no step ' .. name } end
    if step[1].check then
      local ok, why = pcall(step[1].check, step[2], step[3])
      if not ok then why = tostring(type(why) == 'table' and why.err or why) end
      if why then return { 'refused', i, why } end
    end
    named[i] = step
  end
  cursor = cursor + 3 + keys + words
end

if marks > 0 and ARGV[4] == '1' then
  local answer = redis.pcall('SET', KEYS[1], token, 'KEEPTTL')
  if answer.err then return { 'failed', 1, answer.err, '0' } end
end

local function failed(i, why, itself)
  why = tostring(why)
  if i > 1 or itself == '1' then
    for mark = 1, marks do redis.call('SET', KEYS[mark], 'partly ' .. i .. ' ' .. why, 'PX', retention) end
  end
  return { 'failed', i, why, itself }
end

local answers = {}
for i = 1, count do
  local keys, words = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if named[i] then
    local ok, answer = pcall(named[i][1].run, named[i][2], named[i][3])
    local why = answer
    if type(answer) == 'table' and answer.err then ok, why = false, answer.err end
    if not ok then return failed(i, why, '1') end
    answers[#answers + 1] = answer or ''
  else
    local answer = redis.pcall(unpack(ARGV, at + 3, at + 2 + words))
    if type(answer) == 'table' and answer.err then return failed(i, answer.err, '0') end
  end
  at = at + 3 + keys + words
end
for i = 1, marks do redis.call('SET', KEYS[i], 'done', 'PX', retention) end
return { 'committed', answers }
