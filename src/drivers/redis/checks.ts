import {
  checkOptions,
  type Duration,
  errorSummary,
  milliseconds,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../../core/index.ts'
import { redisScript } from './connection.ts'
import { lua } from './lua.generated.ts'
import { isKind, isServerTrouble, listOf, type RedisCommands, RedisError, type RedisReply, textOf } from './redis.ts'
import type { ReplicaAcks } from './wait.ts'

/** What is asked of a server, by whoever writes to it. */
export interface DurabilityOptions {
  /** Refuse to work where Redis can lose what it has accepted, instead of warning. Default false. */
  required?: boolean
  /** So many replicas must have what is written before it counts. Default 0. */
  replicas?: number
  /** How long they may take. Default 1 s. */
  within?: Duration
}

/** How many replicas must have what is written before it counts, within which time. */
export interface Durability extends ReplicaAcks {
  /** Refuse to work where what was accepted can be lost, instead of warning. */
  readonly required: boolean
}

/** What is at stake, in the words of whoever asks. */
export interface DurabilityTexts {
  /** What cannot do without: `streams with consumer groups need`. */
  readonly needs: string
  /** What eviction by this policy may delete. */
  readonly evicted: (policy: string) => string
  /** What was done with what can be lost: `acknowledged`. */
  readonly accepted: string
}

/** The server refuses the user, as it says itself. */
export const REFUSED_LOGIN = /: (WRONGPASS|NOAUTH|NOPERM|ERR AUTH|ERR invalid password)\b/

const checkScript = redisScript('check', lua.check)

export function durabilityOf(where: string, options: DurabilityOptions | undefined): Durability {
  checkOptions(`${where}: durability`, options, { required: true, replicas: true, within: true })
  const { required = false, replicas = 0, within = '1s' } = options ?? {}
  return {
    required,
    replicas: wholeNumber(`${where}: durability.replicas`, replicas, { min: 0 }),
    within: milliseconds(within, `${where}: durability.within`),
  }
}

/** Looks, before the first write, at what the server is and at settings that can lose what it has accepted. */
export async function checkServer(
  redis: RedisCommands,
  key: string,
  where: string,
  durability: Durability,
  texts: DurabilityTexts,
): Promise<void> {
  let info: RedisReply
  let settings: readonly (RedisReply | RedisError)[]
  try {
    await knowsStreams(redis, key, where, texts)
    info = await redis.script(checkScript, [key], [])
    settings = await askSettings(redis, key)
  } catch (error) {
    if (!(error instanceof RedisError)) throw error
    if (isUnknownCommand(error)) throw unsupported(where, texts, 'a server without scripts')
    // What passes is waited for: who comes next looks again.
    if (isServerTrouble(error) && !isKind(error, 'NOPERM')) throw error
    // Hosted servers deny INFO to some users.
    const problem = `whether this Redis can lose what it accepts could not be checked: ${errorSummary(error)}`
    if (durability.required) throw notDurable(where, problem)
    warnOnce(where, problem)
    return
  }
  const facts = new Map(
    textOf(info)
      .split('\r\n')
      .map((line) => line.split(':', 2) as [string, string]),
  )
  for (const setting of settings) {
    // Some users are denied CONFIG: then only INFO is known.
    const [name, value] = setting instanceof RedisError ? [] : listOf(setting)
    if (name !== undefined) facts.set(textOf(name), textOf(value))
  }
  const version = facts.get('redis_version') ?? ''
  if (Number.parseInt(version, 10) < 5) throw unsupported(where, texts, `version ${version}`)
  const problems = dangers(facts, durability, texts)
  if (problems.length > 0 && durability.required) throw notDurable(where, problems.join('; '))
  for (const problem of problems) warnOnce(where, problem)
}

/** What INFO does not include. The first command shows a cluster the way to the node that has the key. */
async function askSettings(redis: RedisCommands, key: string): Promise<readonly (RedisReply | RedisError)[]> {
  const names = ['appendfsync', 'min-replicas-to-write', 'min-replicas-max-lag']
  const commands = [['exists', key], ...names.map((name) => ['config', 'get', name])]
  return (await redis.pipeline(commands, { key })).slice(1)
}

async function knowsStreams(redis: RedisCommands, key: string, where: string, texts: DurabilityTexts): Promise<void> {
  const commands = [
    ['exists', key],
    ['command', 'info', 'xreadgroup'],
  ]
  const [, reply] = await redis.pipeline(commands, { key })
  // Some servers have streams, but no COMMAND INFO.
  if (isUnknownCommand(reply)) return
  if (reply instanceof RedisError) throw reply
  const [known] = listOf(reply)
  if (known === null || listOf(known).length === 0) throw unsupported(where, texts, 'a server without streams')
}

export function isUnknownCommand(error: unknown): boolean {
  return error instanceof RedisError && /unknown (redis )?(sub)?command/i.test(error.message)
}

export function unsupported(where: string, { needs }: DurabilityTexts, what: string): WaybillError {
  return new WaybillError(
    'UNSUPPORTED_SERVER',
    `${where}: this is ${what}; ${needs} Redis 5 or later (6.0 is what is tested), or a compatible server`,
  )
}

function notDurable(where: string, why: string): WaybillError {
  return new WaybillError('NOT_DURABLE', `${where}: durability is required, but ${why}`)
}

function dangers(
  facts: ReadonlyMap<string, string>,
  { replicas }: Durability,
  { evicted, accepted }: DurabilityTexts,
): string[] {
  const problems: string[] = []
  const policy = facts.get('maxmemory_policy')
  if (policy !== undefined && policy !== 'noeviction') {
    problems.push(
      `maxmemory-policy is ${policy}: when memory is full Redis may delete ${evicted(policy)}; set noeviction`,
    )
  }
  if (facts.get('aof_enabled') === '0') {
    problems.push(
      `appendonly is off: what was ${accepted} since the last snapshot is lost when Redis ends; set appendonly yes`,
    )
  }
  if (facts.get('appendfsync') === 'no') {
    problems.push(
      `appendfsync is no: what was ${accepted} and the system has not written to disk by itself, half a minute or more, is lost with the machine; ` +
        'set everysec, or always',
    )
  }
  if (facts.get('role') === 'master' && Number(facts.get('connected_slaves') ?? 0) > 0 && replicas === 0) {
    problems.push(
      `there are replicas, and nobody waits for them: a failover loses what was ${accepted} and not yet copied${bound(facts)}; ` +
        'set durability.replicas',
    )
  }
  return problems
}

function bound(facts: ReadonlyMap<string, string>): string {
  if (Number(facts.get('min-replicas-to-write') ?? 0) === 0) return ''
  // Before 7.0 it is not looked at inside scripts, and all our writes are in one.
  if (Number.parseInt(facts.get('redis_version') ?? '', 10) < 7)
    return ' (min-replicas-to-write does not hold for scripts before 7.0)'
  return `, of the ${facts.get('min-replicas-max-lag')} s that min-replicas-to-write allows a replica to lag`
}
