import { describe, nearest, WaybillError } from '../core/index.ts'

/** What a key must hold for a command to work on it. */
export type KeyType = 'string' | 'hash' | 'list' | 'set' | 'zset' | 'stream'

interface WriteRule {
  /** What its keys must hold, or not exist. Absent: anything. */
  readonly type?: KeyType
  /** How many words it needs, its name left out; more are allowed unless `exact`. */
  readonly words: number
  readonly exact?: boolean
  /** Which words are keys: the first (default), the first two, all, every other, or the first and a counted list. */
  readonly keys?: 'two' | 'all' | 'pairs' | 'counted'
  /** What becomes of the first key, whatever it held: it holds `type`. */
  readonly replaces?: boolean
  /** It needs no memory, so that it works where others are refused; and it may leave a key without a value. */
  readonly frees?: boolean
}

/**
 * The commands that can be queued: those of Redis 6.0 that write, work on keys they name, and wait for nothing. Their
 * replies are not available, so none that only reads is among them. A test holds this table against real servers.
 */
export const WRITES = {
  append: { type: 'string', words: 2, exact: true },
  decr: { type: 'string', words: 1, exact: true },
  decrby: { type: 'string', words: 2, exact: true },
  incr: { type: 'string', words: 1, exact: true },
  incrby: { type: 'string', words: 2, exact: true },
  incrbyfloat: { type: 'string', words: 2, exact: true },
  mset: { type: 'string', words: 2, keys: 'pairs', replaces: true },
  pfadd: { type: 'string', words: 1 },
  pfmerge: { type: 'string', words: 1, keys: 'all' },
  psetex: { type: 'string', words: 3, exact: true, replaces: true },
  set: { type: 'string', words: 2, replaces: true },
  setbit: { type: 'string', words: 3, exact: true },
  setex: { type: 'string', words: 3, exact: true, replaces: true },
  setnx: { words: 2, exact: true },
  setrange: { type: 'string', words: 3, exact: true },

  del: { words: 1, keys: 'all', frees: true },
  expire: { words: 2, frees: true },
  expireat: { words: 2, frees: true },
  persist: { words: 1, exact: true, frees: true },
  pexpire: { words: 2, frees: true },
  pexpireat: { words: 2, frees: true },
  rename: { words: 2, exact: true, keys: 'two', frees: true },
  renamenx: { words: 2, exact: true, keys: 'two', frees: true },
  unlink: { words: 1, keys: 'all', frees: true },

  hdel: { type: 'hash', words: 2, frees: true },
  hincrby: { type: 'hash', words: 3, exact: true },
  hincrbyfloat: { type: 'hash', words: 3, exact: true },
  hmset: { type: 'hash', words: 3 },
  hset: { type: 'hash', words: 3 },
  hsetnx: { type: 'hash', words: 3, exact: true },

  linsert: { type: 'list', words: 4, exact: true },
  lpop: { type: 'list', words: 1, frees: true },
  lpush: { type: 'list', words: 2 },
  lpushx: { type: 'list', words: 2 },
  lrem: { type: 'list', words: 3, exact: true, frees: true },
  lset: { type: 'list', words: 3, exact: true },
  ltrim: { type: 'list', words: 3, exact: true, frees: true },
  rpop: { type: 'list', words: 1, frees: true },
  rpoplpush: { type: 'list', words: 2, exact: true, keys: 'two', frees: true },
  rpush: { type: 'list', words: 2 },
  rpushx: { type: 'list', words: 2 },

  sadd: { type: 'set', words: 2 },
  sdiffstore: { type: 'set', words: 2, keys: 'all', replaces: true, frees: true },
  sinterstore: { type: 'set', words: 2, keys: 'all', replaces: true, frees: true },
  smove: { type: 'set', words: 3, exact: true, keys: 'two', frees: true },
  spop: { type: 'set', words: 1, frees: true },
  srem: { type: 'set', words: 2, frees: true },
  sunionstore: { type: 'set', words: 2, keys: 'all', replaces: true, frees: true },

  geoadd: { type: 'zset', words: 4 },
  zadd: { type: 'zset', words: 3 },
  zincrby: { type: 'zset', words: 3, exact: true },
  zinterstore: { words: 3, keys: 'counted', frees: true },
  zpopmax: { type: 'zset', words: 1, frees: true },
  zpopmin: { type: 'zset', words: 1, frees: true },
  zrem: { type: 'zset', words: 2, frees: true },
  zremrangebylex: { type: 'zset', words: 3, exact: true, frees: true },
  zremrangebyrank: { type: 'zset', words: 3, exact: true, frees: true },
  zremrangebyscore: { type: 'zset', words: 3, exact: true, frees: true },
  zunionstore: { words: 3, keys: 'counted', frees: true },

  xack: { type: 'stream', words: 3, frees: true },
  xadd: { type: 'stream', words: 4 },
  xdel: { type: 'stream', words: 2, frees: true },
  xtrim: { type: 'stream', words: 3, frees: true },
} as const satisfies Record<string, WriteRule>

/** A command that may be queued in a unit of work. */
export type WriteCommand = keyof typeof WRITES

export const WRITE_COMMANDS = Object.keys(WRITES) as WriteCommand[]

/** What is said of a command, with what was left out, so that all are alike to the engine: each unit asks for some. */
export interface CommandRule {
  /** As errors name it. */
  readonly title: string
  readonly type: KeyType | undefined
  readonly words: number
  readonly exact: boolean
  readonly keys: WriteRule['keys']
  readonly replaces: boolean
  readonly frees: boolean
}

const RULES = new Map<string, CommandRule>()
for (const name of WRITE_COMMANDS) {
  const { type, words, exact = false, keys, replaces = false, frees = false }: WriteRule = WRITES[name]
  const rule = { title: name.toUpperCase(), type, words, exact, keys, replaces, frees }
  RULES.set(name, rule).set(rule.title, rule)
}

/** The rules of a command, however it is spelt. */
export function writeOf(name: unknown): CommandRule {
  const known = typeof name === 'string' ? (RULES.get(name) ?? RULES.get(name.toLowerCase())) : undefined
  if (known !== undefined) return known
  const near = typeof name === 'string' ? nearest(name.toLowerCase(), WRITE_COMMANDS) : undefined
  throw new WaybillError(
    'COMMAND_REFUSED',
    `unit of work: ${describe(name)} cannot be queued${near === undefined ? '' : `; did you mean ${near.toUpperCase()}?`} Only ` +
      'commands that write keys they name can: what is queued returns nothing, so read before with a client of your own',
  )
}

/** Where the keys of a command stand among its words. */
export function keyPlaces(write: CommandRule, words: readonly (string | Buffer)[]): number[] {
  switch (write.keys) {
    case 'two':
      return [0, 1]
    case 'all':
      return words.map((_, at) => at)
    case 'pairs':
      return words.map((_, at) => at).filter((at) => at % 2 === 0)
    case 'counted':
      return [0, ...Array.from({ length: Math.min(Number(words[1]) || 0, words.length - 2) }, (_, at) => at + 2)]
    default:
      return [0]
  }
}
