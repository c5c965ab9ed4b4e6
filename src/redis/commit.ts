import { telemetry, Unavailable, WaybillError } from '../core/index.ts'
import type { ReconnectingRedis } from '../drivers/redis/reconnecting.ts'
import {
  isServerTrouble,
  isWrongServer,
  listOf,
  numberOf,
  type RedisArg,
  RedisError,
  type RedisReply,
  textOf,
} from '../drivers/redis/redis.ts'
import { type ReplicaAcks, replicatedScript } from '../drivers/redis/wait.ts'
import { commitUnknown } from '../drivers/sql/transaction.ts'
import { CallBatcher, type CallsInFlight, repliesOf } from './call-batcher.ts'
import type { KeyType } from './commands.ts'
import { commitScripts } from './scripts.ts'
import type { Unit } from './unit.ts'

export interface CommitSettings {
  readonly name: string
  readonly redis: ReconnectingRedis
  readonly inFlight: CallsInFlight
  /** How many replicas must have it before it counts as committed. */
  readonly replicaAcks: ReplicaAcks
  /** How long a done claim is kept, in milliseconds. */
  readonly retention: number
  /** A key of ours that never exists: see commit.lua. */
  readonly absent: string
  /** Whether a claim is gone that a unit holds, and not because it took too long. */
  readonly lostByServer: (claim: string, token: string) => boolean
}

/** A unit as the commit script is given it. */
interface PreparedUnit {
  readonly unit: Unit
  /** Those of its claims first. */
  readonly keys: readonly string[]
  readonly args: readonly RedisArg[]
  readonly bytes: number
}

/** Of what a key must hold, as commit.lua knows them. */
const LETTERS: Readonly<Record<KeyType, string>> = {
  hash: 'h',
  list: 'l',
  set: 's',
  string: 't',
  stream: 'x',
  zset: 'z',
}

/** Redis takes 1,048,576 words in a command. */
const MOST_WORDS = 1_000_000

/**
 * Runs what units have queued, each in one step; see lua/commit.lua. Those that are ready in the same turn share a call,
 * in which one that is refused leaves the others as they are. When the answer of a call is lost, so is that of each.
 */
export class UnitCommits {
  readonly #settings: CommitSettings
  readonly #batcher: CallBatcher<PreparedUnit, RedisReply>

  constructor(settings: CommitSettings) {
    this.#settings = settings
    this.#batcher = new CallBatcher((units) => this.#send(units), settings.inFlight)
  }

  /** Rejects when it was not done, or not all of it. Nothing to wait for where there is nothing to do. */
  commit(unit: Unit): Promise<void> | undefined {
    if (unit.queue.length === 0 && unit.claims.length === 0) return undefined
    let prepared: PreparedUnit
    try {
      prepared = prepare(unit)
    } catch (error) {
      return Promise.reject(error)
    }
    return this.#batcher.ask(prepared, prepared.bytes, (report) => this.#reported(prepared, report), notDone)
  }

  #reported({ unit, keys }: PreparedUnit, report: RedisReply): void {
    if (report === 1) return
    const how = howOf(report)
    if (how === 'raised') notDone(errorIn(report))
    if (how !== 'committed') throw problemOf(this.#settings, unit, keys, report)
    publishSteps(unit, listOf(listOf(report)[1]))
  }

  async #send(units: readonly PreparedUnit[]): Promise<readonly RedisReply[]> {
    const { redis, replicaAcks, retention, absent } = this.#settings
    const keys: string[] = []
    const args: RedisArg[] = [String(retention)]
    for (const unit of units) {
      for (const key of unit.keys) keys.push(key)
      for (const arg of unit.args) args.push(arg)
    }
    const named = new Set<string>()
    for (const { unit } of units) {
      for (const { step, keys: touched } of unit.queue) if (step !== '') for (const key of touched) named.add(key)
    }
    keys.push(...named, absent)
    const script = named.size > 0 ? commitScripts.steps : commitScripts.commands
    const connection = await redis.connection().catch((error: unknown) => {
      throw new NotSent(error)
    })
    try {
      const reports = repliesOf(await replicatedScript(connection, script, keys as [string], args, replicaAcks))
      // A server that is no master any more is given up, so that the next commit finds the one that is.
      if (reports.some((report) => isWrongServer(errorIn(report)))) redis.retire(connection)
      return reports
    } catch (error) {
      if (isWrongServer(error)) redis.retire(connection)
      throw error
    }
  }
}

/** There was no connection, so that it is known that nothing took effect. */
class NotSent {
  readonly cause: unknown

  constructor(cause: unknown) {
    this.cause = cause
  }
}

function notDone(error: unknown): never {
  if (error instanceof NotSent) throw error.cause
  if (isServerTrouble(error)) throw refused(error as RedisError)
  throw error instanceof Unavailable ? commitUnknown(error) : error
}

function prepare(unit: Unit): PreparedUnit {
  const { queue, claims } = unit
  const keys = [...claims]
  for (const key of unit.keys.keys()) if (!claims.includes(key)) keys.push(key)
  let types = ''
  for (const key of keys) types += letterOf(unit.keys.get(key)?.check)
  const args: RedisArg[] = ['']
  for (const { step, base, words } of queue) {
    if (step === '') args.push(String(words.length))
    else args.push(step, '1', String(words.length), base)
    for (const word of words) args.push(word)
  }
  if (keys.length + args.length > MOST_WORDS) {
    const text = `unit of work: ${queue.length} commands with ${args.length} words are too much for one step; make it smaller`
    throw new WaybillError('COMMAND_REFUSED', text)
  }
  const token = claims.length > 0 ? unit.token : ''
  // Nothing may be applied before something is refused for lack of memory, or by a server that has become a replica.
  const asks = (unit.frees && claims.length > 0) || queue.some(({ step }) => step !== '')
  args[0] = `${args.length} ${keys.length} ${claims.length} ${asks ? 1 : 0} ${queue.length} ${types} ${token}`
  let bytes = 0
  for (const key of keys) bytes += key.length
  for (const arg of args) bytes += arg.length
  return { unit, keys, args, bytes }
}

function letterOf(type: KeyType | undefined): string {
  return type === undefined ? '-' : LETTERS[type]
}

function howOf(report: RedisReply): string {
  return textOf(listOf(report)[0])
}

/** The error that ended a unit, if one has. */
function errorIn(report: RedisReply): RedisError | undefined {
  if (report === 1) return undefined
  const why = { raised: 1, refused: 2, failed: 2 }[howOf(report)]
  return why === undefined ? undefined : new RedisError(refusalText(textOf(listOf(report)[why])))
}

function refused(cause: RedisError): Unavailable {
  return new Unavailable(`Redis refused the commit: ${cause.message}`, { cause })
}

function publishSteps({ queue }: Unit, replies: readonly RedisReply[]): void {
  queue
    .filter(({ step }) => step !== '')
    .forEach(({ onCommit }, at) => {
      onCommit?.(replies[at]!)
    })
}

function problemOf(settings: CommitSettings, unit: Unit, keys: readonly string[], report: RedisReply): WaybillError {
  const { queue } = unit
  const [, ...rest] = listOf(report)
  const how = howOf(report)
  if (how === 'fenced') {
    const claim = keys[numberOf(rest[0]) - 1]!
    telemetry['inbox.fenced'].publish({ store: settings.name, key: claim })
    if (settings.lostByServer(claim, unit.token)) {
      const text = 'Redis has lost the claim on this message, as in a failover or a restart: nothing was written'
      return new Unavailable(text, { code: 'LEASE_LOST' })
    }
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
  const cause = errorIn(report)!
  if (how === 'refused') {
    const text = `${what} was refused, and nothing was written: ${cause.message}${key}`
    return new WaybillError('COMMAND_FAILED', text, { cause })
  }
  if (at === 1 && textOf(rest[2]) !== '1') {
    if (isServerTrouble(cause)) return refused(cause)
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

/** Errors of commands inside a script begin with a minus or a place on some servers. */
export function refusalText(text: string): string {
  return text.replace(/^-/, '').replace(/^@user_script: ?\d+: -?/, '')
}
