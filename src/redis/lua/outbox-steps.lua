-- The functions of outbox-enqueue.lua and due-shared.lua as steps of a unit of work's commit (see scripts.ts): business
-- commands, events and intents are one script.
--
-- keys[1]  base name of the shard (see outbox-shared.lua)
-- args     as the function of that name takes them
-- returns  as it does
-- Invariant: a key of another type refuses the whole commit, with nothing written.

local function outbox_types(suffixes)
  return function(keys)
    for suffix, wanted in pairs(suffixes) do
      local found = redis.call('TYPE', keys[1] .. suffix).ok
      if found ~= 'none' and found ~= wanted then
        return 'the key ' .. keys[1] .. suffix .. ' holds a ' .. found .. ', and a ' .. wanted .. ' is needed'
      end
    end
  end
end

local due_types = outbox_types({ [':due'] = 'zset', [':revoked'] = 'zset' })

steps['outbox-enqueue'] = {
  check = outbox_types({
    [':entries'] = 'hash', [':states'] = 'hash', [':heads'] = 'hash', [':pending'] = 'zset', [':held'] = 'zset',
    [':sequence'] = 'string',
  }),
  run = outbox_enqueue,
}
steps['due-record'] = { check = due_types, run = due_record }
steps['due-reschedule'] = { check = due_types, run = due_reschedule }
steps['due-cancel'] = { check = due_types, run = due_cancel }
steps['due-revoke'] = { check = due_types, run = due_revoke }
