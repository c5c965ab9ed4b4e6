import { telemetry, Unavailable, WaybillError } from '../core/index.ts'
import {
  isServerTrouble,
  isWrongServer,
  listOf,
  numberOf,
  type RedisArg,
  RedisError,
  type RedisReply,
  textOf,
} from '../drivers/redis.ts'
import type { SteadyRedis } from '../drivers/redis-steady.ts'
import { type Copies, copiedScript } from '../drivers/redis-wait.ts'
import { commitUnknown } from '../drivers/transaction.ts'
import { commitScript } from './steps.ts'
import type { Unit } from './unit.ts'

export interface CommitSettings {
  readonly name: string
  readonly redis: SteadyRedis
  /** How many replicas must have it before it counts as committed. */
  readonly copies: Copies
  /** How long a done mark is kept, in milliseconds. */
  readonly retention: number
}

/** Runs what is queued, in one step; see lua/commit.lua. Throws when it was not done, or not all of it. */
export async function commit(unit: Unit, { name, redis, copies, retention }: CommitSettings): Promise<void> {
  const { queue, checks, marks, keys } = unit
  if (queue.length === 0 && marks.size === 0) return
  const ordered = [...marks, ...[...keys].filter((key) => !marks.has(key))]
  const args: RedisArg[] = [marks.size > 0 ? unit.token : '', String(marks.size), String(retention)]
  args.push(unit.frees ? '1' : '0', String(checks.size), String(queue.length))
  for (const [key, type] of checks) args.push(key, type)
  for (const { step, keys, words } of queue) {
    args.push(step, String(keys.length), String(words.length), ...keys)
    for (const word of words) args.push(word)
  }
  if (ordered.length + args.length > MOST_WORDS) {
    const text = `unit of work: ${queue.length} commands with ${args.length} words are too much for one step; make it smaller`
    throw new WaybillError('COMMAND_REFUSED', text)
  }
  let report: RedisReply
  try {
    report = await send(redis, copies, ordered, args)
  } catch (error) {
    if (isServerTrouble(error)) throw new Unavailable(`Redis refused the commit: ${messageOf(error)}`, { cause: error })
    throw error instanceof Unavailable ? commitUnknown(error) : error
  }
  const [how, ...rest] = listOf(report)
  if (textOf(how) === 'committed') tellSteps(unit, listOf(rest[0]))
  else throw problemOf(name, unit, ordered, textOf(how), rest)
}

/** A server that is no master any more is given up, so that the next commit finds the one that is. */
async function send(redis: SteadyRedis, copies: Copies, keys: string[], args: RedisArg[]): Promise<RedisReply> {
  if (copies.replicas === 0) return await redis.script(commitScript, keys, args)
  const connection = await redis.connection()
  try {
    return await copiedScript(connection, commitScript, keys as [string, ...string[]], args, copies)
  } catch (error) {
    if (isWrongServer(error)) await connection.close()
    throw error
  }
}

/** Redis takes 1,048,576 words in a command. */
const MOST_WORDS = 1_000_000

function tellSteps({ queue }: Unit, answers: readonly RedisReply[]): void {
  queue
    .filter(({ step }) => step !== '')
    .forEach(({ onCommit }, at) => {
      onCommit?.(answers[at]!)
    })
}

function problemOf(
  name: string,
  { queue }: Unit,
  keys: readonly string[],
  how: string,
  rest: readonly RedisReply[],
): WaybillError {
  if (how === 'fenced') {
    const mark = keys[numberOf(rest[0]) - 1]!
    telemetry['inbox.fenced'].publish({ store: name, key: mark })
    return new WaybillError(
      'LEASE_LOST',
      'the lease on this message ran out before the commit, and another may have it now: nothing was written',
    )
  }
  if (how === 'wrong type') {
    const [key, wanted, found] = rest.map(textOf)
    const text = `unit of work: a ${wanted} is needed, and there is a ${found}: nothing was written. Name another key, or remove ${JSON.stringify(key)}`
    return new WaybillError('WRONG_KEY_TYPE', text)
  }
  const at = numberOf(rest[0])
  const failing = queue[at - 1]
  const what = `${failing?.what ?? 'a step'}, ${at} of ${queue.length},`
  // At the end: what follows a brace is cut from the summaries that are kept.
  const key = failing?.key === undefined ? '' : `. Its key: ${JSON.stringify(failing.key)}`
  const cause = new RedisError(refusalText(textOf(rest[1])))
  if (how === 'refused') {
    const text = `${what} was refused, and nothing was written: ${cause.message}${key}`
    return new WaybillError('COMMAND_FAILED', text, { cause })
  }
  if (at === 1 && textOf(rest[2]) !== '1') {
    if (isServerTrouble(cause)) return new Unavailable(`Redis refused the commit: ${cause.message}`, { cause })
    const text = `${what} failed, and nothing was written: ${cause.message}${key}`
    return new WaybillError('COMMAND_FAILED', text, { cause })
  }
  return partlyApplied(`${what} failed after those before it were applied: ${cause.message}`, key, cause)
}

/** Never tried again by itself: what was applied would be applied twice. */
export function partlyApplied(what: string, key = '', cause?: unknown): WaybillError {
  return new WaybillError(
    'PARTLY_APPLIED',
    `${what}. Look at what was written, put it right, and let the inbox forget the message before it is given again${key}`,
    cause === undefined ? undefined : { cause },
  )
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

/** Errors of commands inside a script begin with a minus or a place on some servers. */
function refusalText(text: string): string {
  return text.replace(/^-/, '').replace(/^@user_script: ?\d+: -?/, '')
}
