/** What may be said to Redis 6.0, for machines that have none: commands are held against a table, and found in text. */

export interface Rule {
  readonly subcommands?: readonly string[]
  /** Words that came with a later version (6.2, 7.0, …). */
  readonly later?: readonly string[]
  /** So many words after the name. */
  readonly most?: number
  /** Any word may be a value of somebody's: only those before the first of these are looked at. */
  readonly valuesAfter?: number | '*'
}

/** Every command that is sent, or called in a script. One that is not here is one nobody has looked up. */
export const COMMANDS: Readonly<Record<string, Rule>> = {
  xadd: { later: ['NOMKSTREAM', 'MINID', 'LIMIT'], valuesAfter: '*' },
  xreadgroup: { later: ['CLAIM'] },
  xack: {},
  xclaim: { later: ['LASTID'] },
  // With IDLE, since 6.2, there is one more.
  xpending: { later: ['IDLE'], most: 6 },
  xrange: {},
  xdel: {},
  xlen: {},
  xgroup: { subcommands: ['CREATE', 'DELCONSUMER'], later: ['ENTRIESREAD'] },
  xinfo: { subcommands: ['GROUPS', 'CONSUMERS', 'STREAM'], later: ['FULL'] },
  exists: {},
  del: {},
  type: {},
  expire: { later: ['NX', 'XX', 'GT', 'LT'], most: 2 },
  pexpire: { later: ['NX', 'XX', 'GT', 'LT'], most: 2 },
  get: { most: 1 },
  set: { later: ['GET', 'EXAT', 'PXAT'] },
  setrange: {},
  hget: {},
  hset: { valuesAfter: 1 },
  hsetnx: { valuesAfter: 1 },
  hmget: {},
  hgetall: {},
  hdel: {},
  hexists: {},
  hlen: {},
  hstrlen: {},
  hincrby: {},
  hscan: { later: ['NOVALUES'] },
  sadd: { valuesAfter: 1 },
  srem: {},
  scard: {},
  sismember: {},
  srandmember: {},
  zadd: { later: ['GT', 'LT'] },
  zrange: { later: ['BYSCORE', 'BYLEX', 'REV', 'LIMIT'] },
  zrem: {},
  zcard: {},
  zcount: {},
  zscore: {},
  zrank: { later: ['WITHSCORE'] },
  zscan: {},
  zlexcount: {},
  zrangebyscore: {},
  zrevrangebyscore: {},
  zrangebylex: {},
  time: { most: 0 },
  wait: {},
  role: { most: 0 },
  info: { most: 1 },
  eval: { valuesAfter: 0 },
  evalsha: { valuesAfter: 0 },
  command: { subcommands: ['INFO'] },
  config: { subcommands: ['GET'], most: 2 },
  client: { subcommands: ['ID', 'UNBLOCK'], later: ['TIMEOUT', 'ERROR'] },
}

/** Why 6.0 would not take it, or it is not known whether it would. */
export function problemOf(args: readonly string[]): string | undefined {
  const name = args[0]!.toLowerCase()
  const rule = COMMANDS[name]
  const text = args.slice(0, 8).join(' ')
  if (rule === undefined) return `${name} is not in the table: ${text}`
  const { subcommands, later = [], most = Number.POSITIVE_INFINITY, valuesAfter } = rule
  if (subcommands !== undefined && !subcommands.includes(args[1]?.toUpperCase() ?? ''))
    return `unknown subcommand: ${text}`
  if (args.length - 1 > most) return `more arguments than 6.0 knows: ${text}`
  const end = valuesAfter === '*' ? args.indexOf('*') : valuesAfter === undefined ? args.length : valuesAfter + 1
  const words = args.slice(1, end < 0 ? args.length : end)
  // Exclusive ids came with 6.2; exclusive scores are as old as the commands.
  const exclusive = name.startsWith('x') ? /^\(\d/ : /^$a/
  const word = words.find((arg) => later.includes(arg.toUpperCase()) || exclusive.test(arg))
  return word === undefined ? undefined : `${word} came after 6.0: ${text}`
}

/** A command in the text of a program: its words as far as they are written there; none when it is named elsewhere. */
export type Written = readonly string[]

/** `redis.call(…)` and `redis.pcall(…)` of Lua. */
export function calledIn(lua: string): Written[] {
  const code = lua.replace(/--[^\n]*/g, '')
  return [...code.matchAll(/redis\.p?call\s*\(\s*/g)].map(({ index, 0: head }) => {
    const rest = code.slice(index + head.length)
    return rest.startsWith("'") ? quoted(rest, '(', ')') : []
  })
}

/** `….command([…])`, `….command('name', …)` and `….pipeline(…)` of TypeScript. */
export function sentIn(typescript: string): Written[] {
  return [...typescript.matchAll(/\.(command|pipeline)\(([^\n]*)/g)].map(({ index, 0: head, 1: how, 2: rest }) => {
    if (rest!.startsWith("'")) return quoted(rest!, '(', ')')
    const at = rest!.search(/\['[a-z]+'/)
    if (at < 0 || (how === 'command' && at > 0)) return []
    return quoted(typescript.slice(index + head.length - rest!.length + at + 1), '[', ']')
  })
}

/** The quoted words until what was opened before is closed. */
function quoted(text: string, open: string, close: string): string[] {
  const words: string[] = []
  for (let at = 0, depth = 1; at < text.length; at++) {
    if (text[at] === "'") {
      const end = text.indexOf("'", at + 1)
      if (depth === 1) words.push(text.slice(at + 1, end))
      at = end
    } else if (text[at] === open) depth++
    else if (text[at] === close && --depth === 0) break
  }
  return words
}

/** As the server of a later version tells it: since when a command is there, and which words came after 6.0. */
export function documented(reply: readonly unknown[]): { since: string; later: string[] } {
  const { since, arguments: args = [] } = fieldsOf(reply[1])
  return { since: String(since), later: laterOf(args as unknown[], false) }
}

export function isLater(version: string): boolean {
  const [major, minor] = version.split('.').map(Number)
  return major! > 6 || (major === 6 && minor! > 0)
}

function laterOf(args: readonly unknown[], within: boolean): string[] {
  return args.flatMap((given) => {
    const { since, token, arguments: nested = [] } = fieldsOf(given)
    const late = within || (since !== undefined && isLater(String(since)))
    return [...(late && token !== undefined ? [String(token)] : []), ...laterOf(nested as unknown[], late)]
  })
}

function fieldsOf(flat: unknown): Record<string, unknown> {
  const cells = flat as unknown[]
  return Object.fromEntries(Array.from({ length: cells.length / 2 }, (_, i) => [cells[2 * i], cells[2 * i + 1]]))
}
