import {
  checkOptions,
  type Duration,
  describe,
  Message,
  milliseconds,
  nameUuid,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../core/index.ts'
import { listOf, numberOf, type RedisArg, type RedisReply, type RedisScript, textOf } from '../drivers/redis/redis.ts'
import { checkSameSlot } from '../drivers/redis/slot.ts'
import type { EnqueueOptions } from '../store/store.ts'
import { DueWorker, type DueWorkerOptions } from './due-worker.ts'
import type { RedisOutbox } from './outbox.ts'
import { enqueueArgs } from './row.ts'
import { outboxScripts, type StepName } from './scripts.ts'
import type { Shard } from './shards.ts'
import { type RedisTx, unitOf } from './unit.ts'

/** Events that are enqueued when their time has come, unless they were revoked. */
export interface DueOptions {
  /** Where the events go. The intents live beside it. */
  outbox: RedisOutbox
  /**
   * A key whose existence says that an intent was revoked, where your own data says so: `(id) => '{shop}:revoked:' + id`.
   * It must be in the slot of the intent. Beside it, `revoke` counts always.
   */
  revokedBy?: (id: string) => string
  /** How long a revocation is remembered. Default 24 hours. */
  remember?: Duration
}

/** An event that is to be published when its time has come. */
export interface Intent {
  readonly id: string
  readonly at: Date
}

/**
 * What became of an intent. `moved`: it has another time now, and was not decided for this one.
 */
export type DueOutcome = 'enqueued' | 'already-enqueued' | 'suppressed' | 'not-due' | 'unknown' | 'moved'

/** Whose workers decide the intents of an outbox. */
const deciding = new WeakMap<RedisOutbox, RedisDue>()
const SHARED =
  'two redisDue of one outbox have workers: the intents of both are one set, and each worker decides all of them with its own event. ' +
  'Make one redisDue, and tell kinds of intents apart by their ids'

/** Made of the id and the time: whoever decides an intent again decides it under the same event id. */
const DUE_EVENTS = '0f5d7a52-7a0c-5d5b-8b7e-5f2f6a1c9d34'

/**
 * Events for when a time has come: the ticket that expires, the offer that ends. A key's own expiry is no callback, so
 * the intent is written down, and a worker decides it when it is due: in one script it looks whether the intent was
 * revoked, and enqueues the event or does not.
 */
export class RedisDue {
  readonly name: string
  readonly #outbox: RedisOutbox
  readonly #revokedBy: ((id: string) => string) | undefined
  readonly #remember: number

  constructor(options: DueOptions) {
    checkOptions('redisDue', options, { outbox: true, revokedBy: true, remember: true })
    if (typeof options.outbox?.entryOf !== 'function') {
      const example = "redis({ …, outbox: { kind: 'stored' } }).outbox"
      throw new WaybillError('INVALID_OPTION', `redisDue: outbox: give one that stores its events, such as ${example}`)
    }
    this.#outbox = options.outbox
    this.#revokedBy = options.revokedBy
    this.#remember = milliseconds(options.remember ?? '24h', 'redisDue: remember')
    this.name = `${options.outbox.name} due`
  }

  /**
   * Records what is to be published at a time: in the unit of work whose other commands make it necessary, or at once.
   * Recorded again it moves to the new time.
   */
  record(tx: RedisTx, intent: Intent): Promise<void>
  record(intent: Intent): Promise<void>
  async record(...given: unknown[]): Promise<void> {
    const [tx, intent] = given.length === 1 ? [undefined, given[0]] : given
    const { id, at } = checkIntent('record', intent as Intent)
    await this.#write(tx, 'due-record', outboxScripts.dueRecord, id, [id, String(at.getTime())])
  }

  /** Moves an intent. Returns whether there was one; within a unit of work that is not known. */
  reschedule(tx: RedisTx, intent: Intent): Promise<undefined>
  reschedule(intent: Intent): Promise<boolean>
  async reschedule(...given: unknown[]): Promise<boolean | undefined> {
    const [tx, intent] = given.length === 1 ? [undefined, given[0]] : given
    const { id, at } = checkIntent('reschedule', intent as Intent)
    return await this.#write(tx, 'due-reschedule', outboxScripts.dueReschedule, id, [id, String(at.getTime())])
  }

  /** Takes an intent back. Returns whether there was one; within a unit of work that is not known. */
  cancel(tx: RedisTx, id: string): Promise<undefined>
  cancel(id: string): Promise<boolean>
  async cancel(...given: unknown[]): Promise<boolean | undefined> {
    const [tx, id] = (given.length === 1 ? [undefined, given[0]] : given) as [unknown, string]
    return await this.#write(tx, 'due-cancel', outboxScripts.dueCancel, checkId('cancel', id), [id])
  }

  /**
   * Says that nothing is published: whoever decides the intent from now on suppresses it, also when it is recorded
   * later. Returns whether it was still to be decided; within a unit of work that is not known.
   */
  revoke(tx: RedisTx, id: string): Promise<undefined>
  revoke(id: string): Promise<boolean>
  async revoke(...given: unknown[]): Promise<boolean | undefined> {
    const [tx, id] = (given.length === 1 ? [undefined, given[0]] : given) as [unknown, string]
    const args = [String(this.#remember), checkId('revoke', id)]
    return await this.#write(tx, 'due-revoke', outboxScripts.dueRevoke, id, args)
  }

  /** Intents that are due, the earliest first. `cutoff`: only those due until then; never any that are not due yet. */
  async find(
    options: { limit?: number; cutoff?: Date; after?: Intent } = {},
    shards: readonly Shard[] = this.shards,
  ): Promise<readonly Intent[]> {
    checkOptions('find', options, { limit: true, cutoff: true, after: true })
    const limit = wholeNumber('find: limit', options.limit ?? 100, { max: 10_000 })
    const after = options.after === undefined ? ['', ''] : [String(options.after.at.getTime()), options.after.id]
    const args = [cutoffOf('find', options.cutoff), String(limit), ...after]
    const found = await Promise.all(shards.map((shard) => shard.run(outboxScripts.dueFind, args)))
    return found.flatMap(intentsOf).sort(byTime).slice(0, limit)
  }

  /**
   * Decides an intent for its time: its event is enqueued under an id made of both, unless the intent was revoked, was
   * moved, or is not due. The event has the intent's id as its key, unless it has one of its own.
   */
  async decide(
    { id, at }: Intent,
    event: Message,
    options: EnqueueOptions & { cutoff?: Date } = {},
  ): Promise<{ readonly outcome: DueOutcome; readonly at: Date | undefined; readonly eventId: string }> {
    checkIntent('decide', { id, at })
    checkOptions('decide', options, {
      key: true,
      topic: true,
      tenant: true,
      availableAt: true,
      aggregate: true,
      cutoff: true,
    })
    if (!(event instanceof Message)) {
      throw new WaybillError('INVALID_OPTION', `decide: ${describe(event)} is not an event; make one with a definition`)
    }
    const { cutoff, ...rest } = options
    const key = rest.key ?? event.key ?? id
    const shard = this.#shardOf(id)
    if (this.#outbox.shards.of(key) !== shard) {
      const text = `decide: the event of ${describe(id)} has another key, which is in another shard; use the id of the intent as its key`
      throw new WaybillError('CROSSSLOT', text)
    }
    const eventId = dueEventId(id, at)
    const entry = this.#outbox.entryOf(event.with({ id: eventId }), { ...rest, key })
    const marker = this.#revokedBy?.(id)
    const more = marker === undefined ? [] : [shard.store.client.keyPrefix + marker]
    checkSameSlot('redisDue: revokedBy', [shard.base, ...more])
    const args = [id, String(at.getTime()), cutoffOf('decide', cutoff), String(more.length), ...enqueueArgs([entry])]
    const [outcome, time] = listOf(await shard.write(outboxScripts.dueDecide, args, more))
    const found = textOf(outcome) as DueOutcome
    if (found === 'enqueued') this.#outbox.committed(shard, [entry])
    return { outcome: found, at: textOf(time) === '' ? undefined : new Date(numberOf(time)), eventId }
  }

  /** Where the intents are: a worker asks each by itself. */
  get shards(): readonly Shard[] {
    return this.#outbox.shards.all
  }

  /** A worker that decides what is due, again and again: all intents of the outbox. */
  worker(options: DueWorkerOptions): DueWorker {
    const worker = new DueWorker(this, options)
    const first = deciding.get(this.#outbox) ?? this
    deciding.set(this.#outbox, first)
    if (first !== this) warnOnce(this.name, SHARED)
    return worker
  }

  /** Forgets revocations that were remembered long enough, for a Cleaner. Intents go when they are decided. */
  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('clean', options, { retention: true, limit: true })
    const limit = wholeNumber('clean: limit', options.limit ?? 1000, { max: 100_000 })
    let count = 0
    await this.#outbox.shards.each(async (shard) => {
      if (count < limit) count += numberOf(await shard.run(outboxScripts.dueClean, [String(limit - count)]))
    })
    return count
  }

  #shardOf(id: string): Shard {
    return this.#outbox.shards.of(id)
  }

  async #write(
    tx: unknown,
    step: StepName,
    script: RedisScript,
    id: string,
    args: readonly RedisArg[],
  ): Promise<boolean | undefined> {
    if (tx === undefined) return numberOf(await this.#shardOf(id).write(script, args)) > 0
    const unit = unitOf(tx)
    const { base, touched } = this.#outbox.shards.forUnit(unit, id, id)
    unit.add({ step, base, keys: touched.due, args })
    return undefined
  }
}

/** Events that are due at a time, and can be revoked until then: `redisDue({ outbox: db.outbox })`. */
export function redisDue(options: DueOptions): RedisDue {
  return new RedisDue(options)
}

/** The id of the event that an intent becomes: the same whenever, and by whomever, it is decided. */
export function dueEventId(id: string, at: Date): string {
  return nameUuid(3, DUE_EVENTS, `${id}|${at.getTime()}`)
}

/** The furthest time of a Date. */
const FURTHEST = 8.64e15

function intentsOf(reply: RedisReply): Intent[] {
  const cells = listOf(reply)
  return Array.from({ length: cells.length / 2 }, (_, i) => {
    // A score that somebody else has written may be no time at all.
    const at = Math.max(-FURTHEST, Math.min(numberOf(cells[i * 2 + 1]), FURTHEST))
    return { id: textOf(cells[i * 2]), at: new Date(at) }
  })
}

function byTime(a: Intent, b: Intent): number {
  return a.at.getTime() - b.at.getTime() || Buffer.compare(Buffer.from(a.id), Buffer.from(b.id))
}

function checkIntent(where: string, intent: Intent): Intent {
  checkOptions(where, intent, { id: true, at: true })
  checkId(where, intent?.id)
  checkDate(`${where}: at`, intent.at)
  return intent
}

function checkId(where: string, id: unknown): string {
  if (typeof id === 'string' && id !== '' && Buffer.byteLength(id) <= 1024) return id
  throw new WaybillError('INVALID_OPTION', `${where}: id: ${describe(id)} is not allowed; give text of 1 to 1024 bytes`)
}

function cutoffOf(where: string, cutoff: Date | undefined): string {
  return cutoff === undefined ? '' : String(checkDate(`${where}: cutoff`, cutoff).getTime())
}

function checkDate(where: string, at: unknown): Date {
  if (at instanceof Date && !Number.isNaN(at.getTime())) return at
  throw new WaybillError('INVALID_OPTION', `${where}: ${describe(at)} is not a date; give a Date`)
}
