-- Commits units of work, one after the other: looks first, then writes, and says what it did. Units that were ready in
-- the same moment share a call, and nothing else: each has claims, checks and a reply of its own. Step files
-- (`step-*.lua`) stand before this text, where a unit needs them, and fill the table `steps`.
--
-- KEYS     of each unit: the claims of the inbox that it holds, then every other key it touches; then what named steps
--          touch; last a key that never exists, so that a cluster refuses all of it while the slot moves; one slot
-- ARGV     1 how long (ms) a done claim is kept; then of each unit: 1 in one word, because each word costs: how many words it
--          has here, how many keys, how many are claims, 1 to ask first whether the server takes writes that need
--          memory, how many steps, what each key must hold, a letter of TYPES or '-' for anything, their token;
--          of each step: of a command how many words, and the words; otherwise its name, how many keys, how many words, the
--          keys, the words
-- returns  1: all have committed; otherwise for each unit one of
--          1: it has committed
--          'committed', the replies of its named steps in their order
--          'fenced', number of the claim: it is not ours (any more); nothing was done
--          'wrong type', key, what it should hold, what it holds; nothing was done
--          'refused', number of the step, why; nothing was done
--          'failed', number of the step, why, '1' when it may itself have done something; those before it were done
--          'raised', why
-- Invariant: without the claims nothing is written. One becomes `done` in the same step as the work, and last, so that
--          whatever stops the script leaves no claim that hides work undone. Work done in part leaves `partly …` there:
--          nobody does it again without having looked. Whatever becomes of a unit, those after it are committed.

local retention = ARGV[1]
local TYPES = { h = 'hash', l = 'list', s = 'set', t = 'string', x = 'stream', z = 'zset' }

local function slice(from, length)
  local part = {}
  for i = 1, length do part[i] = ARGV[from + i - 1] end
  return part
end

local function text(why)
  return tostring(type(why) == 'table' and why.err or why)
end

-- A step that has a name, with its keys and words; and where the next one begins.
local function named_step(at)
  local keys, words = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local step = { steps and steps[ARGV[at]], slice(at + 3, keys), slice(at + 3 + keys, words) }
  return step, at + 3 + keys + words
end

local asked = false

local function commit(at, key, keys, claims, tries, count, types, token)
  for i = 1, claims do
    if redis.call('GET', KEYS[key + i]) ~= token then return { 'fenced', i } end
  end

  for i = 1, keys do
    local wanted = TYPES[string.sub(types, i, i)]
    local found = wanted and redis.call('TYPE', KEYS[key + i]).ok
    if wanted and found ~= 'none' and found ~= wanted then return { 'wrong type', KEYS[key + i], wanted, found } end
  end

  local named
  local cursor = at
  for i = 1, count do
    local words = tonumber(ARGV[cursor])
    if words then
      cursor = cursor + 1 + words
    else
      local name, step = ARGV[cursor], nil
      step, cursor = named_step(cursor)
      if not step[1] then return { 'refused', i, 'there is no step ' .. name } end
      if step[1].check then
        local ok, why = pcall(step[1].check, step[2], step[3])
        if not ok then why = text(why) end
        if why then return { 'refused', i, why } end
      end
      named = named or {}
      named[i] = { step, cursor }
    end
  end

  if tries and not asked then
    -- Writes nothing, and is refused where a write would be. Once it is not, nothing of this script is refused for memory.
    local answer = redis.pcall('SETRANGE', KEYS[#KEYS], 0, '')
    if type(answer) == 'table' and answer.err then return { 'failed', 1, answer.err, '0' } end
    asked = true
  end

  local function failed(i, why, itself)
    why = tostring(why)
    if i > 1 or itself == '1' then
      for claim = 1, claims do redis.call('SET', KEYS[key + claim], 'partly ' .. i .. ' ' .. why, 'PX', retention) end
    end
    return { 'failed', i, why, itself }
  end

  local answers
  for i = 1, count do
    if named and named[i] then
      local step = named[i][1]
      local ok, answer = pcall(step[1].run, step[2], step[3])
      local why = answer
      if type(answer) == 'table' and answer.err then ok, why = false, answer.err end
      if not ok then return failed(i, why, '1') end
      answers = answers or {}
      answers[#answers + 1] = answer or ''
      at = named[i][2]
    else
      local words = tonumber(ARGV[at])
      local answer = redis.pcall(unpack(ARGV, at + 1, at + words))
      if type(answer) == 'table' and answer.err then return failed(i, answer.err, '0') end
      at = at + 1 + words
    end
  end
  for i = 1, claims do redis.call('SET', KEYS[key + i], 'done', 'PX', retention) end
  return answers and { 'committed', answers } or 1
end

local HEAD = '^(%d+) (%d+) (%d+) (%d) (%d+) ([%l-]*) (.*)$'
local units, all, at, key, last = {}, true, 2, 0, #ARGV
while at <= last do
  local words, keys, claims, tries, count, types, token = string.match(ARGV[at], HEAD)
  keys = tonumber(keys)
  local ok, answer = pcall(commit, at + 1, key, keys, tonumber(claims), tries == '1', tonumber(count), types, token)
  units[#units + 1] = ok and answer or { 'raised', text(answer) }
  all = all and ok and answer == 1
  at, key = at + tonumber(words), key + keys
end
return all and 1 or units
