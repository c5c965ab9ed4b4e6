import {
  type BackoffOptions,
  backoff,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  type Message,
  milliseconds,
  type OptionNames,
  type RawMessage,
  Reject,
  telemetry,
  Unavailable,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../core/index.ts'
import { type Delivery, Flow, type Source, Task } from '../flow/index.ts'
import { applyParked, failureOfOne, ParkedKeys, type Target, writeAll } from './apply.ts'
import { changeList } from './changes.ts'
import { idText, type Projection } from './definition.ts'
import type { Position } from './port.ts'
import { Enricher, type Prepared, prepare, shownOf } from './prepare.ts'
import type { ProjectionDatabase } from './store.ts'
import { inSpanOf } from './traced.ts'

/** Where the messages come from, and where the view is. */
export interface BrokerProjectorOptions<Tx> {
  store: ProjectionDatabase<Tx>
  /** A broker's subscription. The relay behind it reads an outbox that is a log: it puts `sequence` on every message. */
  from: Source
  projection: Projection
  name?: string
  /** How many messages are handled at once, of different keys. Default 10. */
  concurrency?: number
  /** See ProjectorOptions. Tries of parked events begin after 1 s. */
  parked?: { limit?: number; backoff?: BackoffOptions; every?: Duration }
  enrich?: { timeout?: Duration }
}

const OPTIONS: OptionNames<BrokerProjectorOptions<unknown>> = {
  store: true,
  from: true,
  projection: true,
  name: true,
  concurrency: true,
  parked: true,
  enrich: true,
}

const PARKED_AT_ONCE = 100

/**
 * Keeps a view up to date from a broker. Messages come again, and old ones after newer ones: the number that the outbox
 * gave an event is compared, for each key, with the highest that was applied. Whatever is not higher changes nothing.
 *
 * An event that cannot be applied is parked at once, and holds its key: were it left to the broker to give it again, later
 * ones of its key would be applied before it, and it would be taken for a replay. Only an outage of the database is left to
 * the flow. A key is locked while one of its events is applied, so that two processes never write one at once; the order
 * in which they get the events of a key is the broker's.
 */
export class BrokerProjector<Tx = unknown> extends Flow {
  /** Tries parked events again: run it beside this. */
  readonly parked: Task<number>
  readonly #target: Omit<Target<Tx>, 'view'>
  #opening: Promise<Target<Tx>> | undefined
  /**
   * Something could neither be applied nor parked. Until that is over all are refused, also those without a handler: the flow
   * then sees that all fail, keeps what it has in order, and blames nobody.
   */
  #halted = false
  readonly #enrichTimeout: number

  constructor(options: BrokerProjectorOptions<Tx>) {
    checkOptions('broker projector', options, OPTIONS as OptionNames<BrokerProjectorOptions<Tx>>)
    const { store: db, projection, from } = options
    const name = options.name ?? `projection ${idText(projection)}`
    checkOptions(`${name}: parked`, options.parked, { limit: true, backoff: true, every: true })
    checkOptions(`${name}: enrich`, options.enrich, { timeout: true })
    super({
      name,
      from,
      step: { each: ({ message }: Delivery, signal) => this.#handle(message, signal) },
      concurrency: options.concurrency ?? 10,
    })
    if (projection.missing === 'fail') {
      const text = `${name}: missing 'fail' would stop at an event that the broker gives to others meanwhile; give 'park' or 'skip'`
      throw new WaybillError('INVALID_OPTION', text)
    }
    const limit = wholeNumber(`${name}: parked.limit`, options.parked?.limit ?? 10_000)
    this.#enrichTimeout = milliseconds(options.enrich?.timeout ?? '5s', `${name}: enrich.timeout`)
    this.#target = {
      db,
      projection,
      missing: projection.missing ?? 'park',
      parked: new ParkedKeys([], 0, limit),
      retryIn: backoff(options.parked?.backoff, `${name}: parked.backoff`, { min: '1s', max: '10m' }),
    }
    this.parked = new Task({
      name: `${name}: parked`,
      every: options.parked?.every ?? '1s',
      run: (signal) => this.#tryParked(signal),
      again: (applied) => applied > 0,
      phase: 'consumers',
    })
  }

  /** One for all: handlers run side by side, and the table is created once. */
  #open(): Promise<Target<Tx>> {
    this.#opening ??= this.#openView().catch((error) => {
      this.#opening = undefined
      throw error
    })
    return this.#opening
  }

  async #openView(): Promise<Target<Tx>> {
    const { projection, db } = this.#target
    // A view from a broker may have been filled before: what is old is known by its keys.
    const view = await db.projections.view(projection, true).catch((error) => {
      if (error instanceof WaybillError && error.code === 'NO_VIEW') return db.projections.view(projection, false)
      throw error
    })
    return { ...this.#target, view }
  }

  async #handle(message: Message, signal: AbortSignal): Promise<void> {
    const target = await this.#open()
    const { projection } = target
    if (this.#halted) await this.#checkRoom(target)
    const raw = message as RawMessage
    const position = positionOf(message)
    const { type, id } = message
    const key = message.key ?? `#${id}`
    const [event] = await prepare(projection, [{ position, key, type, message: raw, unreadable: undefined }])
    if (event === undefined) return
    await this.#enrich(event, signal)
    const error = await inSpanOf(projection, [event], () => this.#applyOrPark(target, event, key))
    if (error === undefined) return
    const about = {
      projection: idText(projection),
      type,
      position: String(position),
      reason: errorSummary(error),
      error,
    }
    telemetry['projection.parked'].publish(about)
    if (!this.started || this.parked.started) return
    const text =
      'an event is parked, and its `parked` is not started here: where nobody runs it, no parked event is tried again'
    warnOnce(this.name, text)
  }

  /** Whatever fails is parked, also by an outage that is over by then. What it would have changed is undone before. */
  async #applyOrPark(target: Target<Tx>, event: Prepared, key: string): Promise<Error | undefined> {
    const apply = () => target.db.withTransaction((tx) => this.#apply(target, tx, event, key))
    try {
      return await apply().catch((thrown) => {
        if (event.failure !== undefined || thrown?.code === 'PARKED_FULL') throw thrown
        event.failure = failureOfOne(thrown)
        return apply()
      })
    } catch (error) {
      this.#halted = true
      throw error
    }
  }

  /**
   * In one transaction, and on its connection alone: the key locked and compared, and the changes written, or the event
   * parked. Returns why it was parked.
   */
  async #apply(target: Target<Tx>, tx: Tx, event: Prepared, key: string): Promise<Error | undefined> {
    const { projection, db } = target
    const { projections: store } = db
    const { position, type, message } = event
    const applied = (await store.lockKeys(tx, projection, [key])).get(key) ?? 0n
    // A duplicate, or a replay: newer state stays.
    if (position <= applied) return undefined
    const [first] = await store.parked({ projection, key }, { limit: 1 }, tx)
    // It is parked already, and tried from there.
    if (first?.position === position) return undefined
    const behind = first !== undefined && first.position < position
    if (event.failure === undefined && !behind) {
      await writeAll(target, tx, [event], [changeList(event.reaction!.handle(event.typed!, event.found))])
      await store.moveKeys(tx, projection, [{ key, position }])
      return undefined
    }
    await this.#checkRoom(target, tx)
    const error = behind ? undefined : shownOf(event, event.failure)
    const reason = error && errorSummary(error)
    await store.park(tx, projection, [{ position, key, type, message, error: reason, retryIn: target.retryIn(1) }])
    return error
  }

  /** Rejects while as many events are parked as are allowed, or the database cannot be asked. */
  async #checkRoom({ db, projection, parked: { limit } }: Target<Tx>, tx?: Tx): Promise<void> {
    const { count } = await db.projections.parkedKeys(projection, tx)
    this.#halted = count >= limit
    if (!this.#halted) return
    const text = `projection ${idText(projection)} has stopped: ${count} events are parked, and ${limit} are allowed; mend what fails, retry or skip them, or raise parked.limit`
    throw new Unavailable(text, { code: 'PARKED_FULL' })
  }

  /** One try. Whatever comes of it, it is tried again with the parked ones. */
  async #enrich(event: Prepared, signal: AbortSignal): Promise<void> {
    const settings = { concurrency: 1, timeout: this.#enrichTimeout, giveUp: Number.POSITIVE_INFINITY }
    const obstacle = await new Enricher(settings, this.clock).enrich([event], signal)
    signal.throwIfAborted()
    event.failure ??= obstacle
  }

  /** Those that are due, each alone. Returns how many were applied. */
  async #tryParked(signal: AbortSignal): Promise<number> {
    const { projection, db } = this.#target
    const { projections: store } = db
    const due = await store.due(projection, PARKED_AT_ONCE)
    // The table may have got the column that was missing.
    if (due.length > 0) this.#opening = undefined
    const target = await this.#open()
    let count = 0
    for (const { position, key, type, message, attempts } of due) {
      const [event] = await prepare(projection, [{ position, key, type, message, unreadable: 'it was parked so' }])
      if (signal.aborted) return count
      const lock = async (tx: Tx) => {
        if (key !== undefined) await store.lockKeys(tx, projection, [key])
        return true
      }
      const move = (tx: Tx) => store.moveKeys(tx, projection, key === undefined ? [] : [{ key, position }])
      if (event === undefined) {
        // A handler that is gone has nothing against it.
        await db.withTransaction(async (tx) => {
          await lock(tx)
          if (await store.unpark(tx, projection, position)) await move(tx)
        })
      } else {
        await this.#enrich(event, signal)
        if (!(await applyParked(target, event, attempts, lock, move))) continue
      }
      count++
      telemetry['projection.unparked'].publish({
        projection: idText(projection),
        type,
        position: String(position),
        attempts,
      })
    }
    return count
  }
}

/** The number that the outbox gave it. */
function positionOf(message: Message): Position {
  const text = String(message.extensions['sequence'] ?? '')
  if (/^\d{1,19}$/.test(text)) return BigInt(text)
  throw new Reject(
    `${message} has no number (extension sequence: ${describe(text)}); its relay must read an outbox with log: true`,
  )
}
