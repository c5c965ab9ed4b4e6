import type { Mutation } from '../../scripts/mutations/mutation.ts'

const lua = 'src/redis/lua.generated.ts'
const store = 'test/redis/outbox-store.test.ts'
const due = 'test/redis/due.test.ts'
const repair = 'test/redis/outbox-repair.test.ts'
const needs = ['redis', 'redis6']

/** Faults of the outbox on Redis and of due-time events. Lua is changed where it is embedded. */
export const mutations: Mutation[] = [
  {
    name: 'a settlement of the redis outbox is not fenced by its token',
    file: lua,
    find: "return state and state[S_STATE] == 'leased' and state[S_TOKEN] == token and state[S_AT] > now",
    replace: "return state and state[S_STATE] == 'leased' and state[S_AT] > now",
    test: 'test/redis/outbox-faults.test.ts',
    expects: 'marks change nothing',
    needs,
  },
  {
    name: 'a claim of the redis outbox leaves the entry where others find it',
    file: lua,
    find: "  outbox_leave(box, member, state)\n  state[S_STATE], state[S_AT], state[S_TOKEN] = 'leased', now + lease, token",
    replace: "  state[S_STATE], state[S_AT], state[S_TOKEN] = 'ready', now + lease, token",
    test: store,
    expects: 'none is in flight twice',
    needs,
  },
  {
    name: 'a later event of a key is offered beside the first',
    file: lua,
    find: 'if head and head ~= member then return outbox_hold(box, member, state) end',
    replace: '',
    test: 'test/redis/outbox-conformance.test.ts',
    needs,
  },
  {
    name: 'the next of a key does not follow when the first is done',
    file: lua,
    find: "if redis.call('HGET', box.heads, pair[1]) == pair[2] then outbox_advance(box, pair[1], now) end",
    replace: '',
    test: store,
    expects: 'in order per key',
    needs,
  },
  {
    name: 'an event that is there already is written again',
    file: lua,
    find: "if redis.call('HSETNX', box.entries, id, args[i + 4]) == 0 then",
    replace: "redis.call('HSET', box.entries, id, args[i + 4])\n    if false then",
    test: store,
    expects: 'duplicate id is a no-op',
    needs,
  },
  {
    name: 'a step does not look at the types of its keys first',
    file: lua,
    find: "if found ~= 'none' and found ~= wanted then",
    replace: 'if false then',
    test: store,
    expects: 'refuses the whole unit of work',
    needs,
  },
  {
    name: 'relays of this process are not told of a commit',
    file: 'src/redis/outbox-store.ts',
    find: 'if (count > duplicates) this.#hints.tell()',
    replace: '',
    test: store,
    expects: 'right after the commit',
    needs,
  },
  {
    name: 'what was cleaned leaves its state behind',
    file: lua,
    find: "if not state or state[S_STATE] == 'published' then\n    redis.call('HDEL', box.states, outbox_id(member))",
    replace: "if not state or state[S_STATE] == 'published' then",
    test: store,
    expects: 'as empty as before',
    needs,
  },
  {
    name: 'an entry that nobody has a place for is not put back',
    file: lua,
    find: "elseif not redis.call('ZSCORE', box[set], place_of(member, state)) then",
    replace: 'elseif false then',
    test: repair,
    expects: 'an entry without a place',
    needs,
  },
  {
    name: 'a key without a head gets one from behind',
    file: lua,
    find: "and redis.call('HSETNX', box.heads, state[S_KEY], member) == 1 then",
    replace: 'and false then',
    test: repair,
    expects: 'a key whose head is missing',
    needs,
  },
  {
    name: 'an intent that was revoked is told',
    file: lua,
    find: "if marked or (KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1) then",
    replace: 'if false then',
    test: due,
    expects: 'suppressed by revocation',
    needs,
  },
  {
    name: 'the id of a due event does not depend on its time',
    file: 'src/redis/due.ts',
    // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the text of the file.
    find: '`${id}|${at.getTime()}`',
    replace: 'id',
    test: due,
    expects: 'UUID v3',
    needs,
  },
  {
    name: 'the cutoff is not looked at',
    file: lua,
    find: "if tonumber(at) > math.min(tonumber(ARGV[3]) or now, now) then return { 'not-due', at } end",
    replace: '',
    test: due,
    expects: 'not due',
    needs,
  },
]
