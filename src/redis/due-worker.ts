import {
  backoff,
  type Clock,
  checkOptions,
  classify,
  type Duration,
  errorSummary,
  type Message,
  milliseconds,
  systemClock,
  telemetry,
  WaybillError,
  wholeNumber,
  withDeadline,
} from '../core/index.ts'
import { Task } from '../flow/index.ts'
import type { Intent, RedisDue } from './due.ts'
import type { Shard } from './shards.ts'

/** How often due events are looked for. */
export interface DueWorkerOptions {
  /**
   * The event that an intent becomes. What it throws leaves the intent as it is, to be tried again later; so does one that
   * is not made within 30 s.
   */
  event: (intent: Intent) => Message | Promise<Message>
  name?: string
  /** Default every second. */
  every?: Duration
  /** How many are found at once. Default 100. */
  batch?: number
  /** Decides only what has been due for so long: time for a revocation that is still on its way. Default 0. */
  lag?: Duration
  clock?: Clock
}

/** What a round has decided. */
export interface Decided {
  readonly enqueued: number
  readonly already: number
  readonly suppressed: number
  /** Moved, or decided by another worker meanwhile. */
  readonly other: number
  /** Put aside: no event could be made of them, or it was refused. They stay as they are. */
  readonly failed: number
}

/**
 * Decides intents whose time has come.
 *
 * 1. Each round goes once through all that is due, the earliest first, page by page. Shards have rounds of their own: one
 *    whose server is away stops no other, and one whose server hangs is asked seldom.
 * 2. Each is decided on its own, in one script. Many workers do each intent once: the second finds it decided.
 * 3. One that cannot be decided, because no event can be made of it or the outbox refuses its event, is reported and put
 *    aside: it stays as it is, stands in nobody's way, and is tried again after 1 s, 2 s, … 60 s.
 */
export class DueWorker extends Task<Decided> {
  constructor(due: RedisDue, options: DueWorkerOptions) {
    checkOptions('due worker', options, { event: true, name: true, every: true, batch: true, lag: true, clock: true })
    if (typeof options.event !== 'function') {
      throw new WaybillError('INVALID_OPTION', 'due worker: event: give a function that makes the event of an intent')
    }
    const { every = '1s', clock = systemClock, event } = options
    const limit = wholeNumber('due worker: batch', options.batch ?? 100, { max: 10_000 })
    const lag = milliseconds(options.lag ?? 0, 'due worker: lag')
    const aside = new UndecidedIntents(due.name, clock)
    const rounds = new Rounds({ due, event, limit, lag, clock, aside })
    const pause = milliseconds(every, 'due worker: every')
    // While one shard is away the others are looked at nearly as often.
    const backoff = { min: pause, max: Math.max(pause, LONGEST_PAUSE) }
    super({
      ...{ name: options.name ?? due.name, every, backoff, clock },
      run: async (signal) => {
        const decided = await rounds.run(signal)
        const stuck = aside.allStuck(decided)
        if (stuck === undefined) this.condition.clear('intents')
        else this.condition.hinder('intents', 'failing', stuck)
        return decided
      },
    })
  }
}

/** Of a worker that meets a server that is away, in milliseconds. */
const LONGEST_PAUSE = 5000

/** How long the making of an event may take, in milliseconds: one that hangs must not hold up those behind it. */
const EVENT_WITHIN = 30_000

interface RoundSettings {
  readonly due: RedisDue
  readonly event: DueWorkerOptions['event']
  readonly limit: number
  readonly lag: number
  readonly clock: Clock
  readonly aside: UndecidedIntents
}

type Counts = { -readonly [Name in keyof Decided]: number }

/** A shard whose round failed is left out for so many times as long as that took. */
const LEFT_OUT = 5

class Rounds {
  readonly #settings: RoundSettings
  /** Shards that failed, and until when they are left out: the others wait for one that hangs. */
  readonly #away = new Map<Shard, { readonly error: unknown; readonly until: number }>()

  constructor(settings: RoundSettings) {
    this.#settings = settings
  }

  async run(signal: AbortSignal): Promise<Decided> {
    const { due, lag, clock, aside } = this.#settings
    const counts: Counts = { enqueued: 0, already: 0, suppressed: 0, other: 0, failed: 0 }
    const until = lag === 0 ? {} : { cutoff: new Date(clock.now() - lag) }
    await Promise.all(due.shards.map((shard) => this.#unlessAway(shard, until, counts, signal)))
    if (Object.values(counts).some((count) => count > 0)) {
      telemetry['due.decided'].publish({ due: due.name, ...counts })
    }
    const away = due.shards.map((shard) => this.#away.get(shard)).find((one) => one !== undefined)
    if (away !== undefined) throw away.error
    aside.forgetOthers()
    return counts
  }

  async #unlessAway(shard: Shard, until: { cutoff?: Date }, counts: Counts, signal: AbortSignal): Promise<void> {
    const { clock } = this.#settings
    const began = clock.monotonic()
    if ((this.#away.get(shard)?.until ?? 0) > began) return
    try {
      await this.#through(shard, until, counts, signal)
      this.#away.delete(shard)
    } catch (error) {
      const now = clock.monotonic()
      this.#away.set(shard, { error, until: now + LEFT_OUT * (now - began) })
    }
  }

  async #through(shard: Shard, until: { cutoff?: Date }, counts: Counts, signal: AbortSignal): Promise<void> {
    const { due, limit, aside } = this.#settings
    for (let page: readonly Intent[] = [], first = true; !signal.aborted; first = false) {
      if (!first && page.length < limit) return
      const after = page.at(-1)
      page = await due.find({ limit, ...until, ...(after === undefined ? {} : { after }) }, [shard])
      // One after the other: those of a shard wait for each other anyway, and order is kept.
      for (const intent of page) {
        if (signal.aborted) return
        counts[aside.has(intent) ? 'failed' : await this.#decide(intent, until)]++
      }
    }
  }

  async #decide(intent: Intent, until: { cutoff?: Date }): Promise<keyof Decided> {
    const { due, event, aside, clock } = this.#settings
    let made: Message | undefined
    try {
      made = await withDeadline((async () => event(intent))(), EVENT_WITHIN, clock, () => {
        throw new WaybillError('TIMEOUT', `no event was made within ${EVENT_WITHIN} ms`)
      })
      const { outcome } = await due.decide(intent, made, until)
      aside.clear(intent)
      if (outcome === 'enqueued' || outcome === 'suppressed') return outcome
      return outcome === 'already-enqueued' ? 'already' : 'other'
    } catch (error) {
      // Redis is away, or takes nothing: no intent is to blame, and none of this shard can be decided.
      if (made !== undefined && classify(error) === 'down') throw error
      aside.put(intent, error)
      return 'failed'
    }
  }
}

/** Warnings of one round; the others are in the count of `due.decided`. */
const REPORTED_AT_MOST = 10

/** Intents that could not be decided, by id and time. They stay where they are; this is when to try them again. */
class UndecidedIntents {
  readonly #due: string
  readonly #clock: Clock
  #waiting = new Map<string, { readonly failures: number; readonly until: number }>()
  /** Those of this round. */
  #seen = new Set<string>()
  #reported = 0
  #lastError: unknown
  readonly #pause = backoff({ min: 1000, max: 60_000, jitter: 0 }, 'due worker')

  constructor(due: string, clock: Clock) {
    this.#due = due
    this.#clock = clock
  }

  /** Whether it is not its time yet. */
  has(intent: Intent): boolean {
    const name = nameOf(intent)
    const known = this.#waiting.get(name)
    if (known === undefined) return false
    this.#seen.add(name)
    return known.until > this.#clock.monotonic()
  }

  put(intent: Intent, error: unknown): void {
    this.#lastError = error
    const name = nameOf(intent)
    const failures = (this.#waiting.get(name)?.failures ?? 0) + 1
    this.#waiting.set(name, { failures, until: this.#clock.monotonic() + this.#pause(failures) })
    this.#seen.add(name)
    if (failures > 1 || ++this.#reported > REPORTED_AT_MOST) return
    const message = `intent ${JSON.stringify(intent.id)} cannot be decided and stays as it is; it is tried again now and then: ${errorSummary(error)}`
    telemetry.warning.publish({ where: this.#due, message })
  }

  clear(intent: Intent): void {
    this.#waiting.delete(nameOf(intent))
  }

  /** Why nothing that is due could be decided; `undefined` where something was, or nothing is due. */
  allStuck({ failed, ...others }: Decided): string | undefined {
    if (failed === 0 || Object.values(others).some((count) => count > 0)) return undefined
    return `nothing of what is due can be decided: ${errorSummary(this.#lastError)}`
  }

  /** After a whole round: what was not seen in it was decided elsewhere, moved or taken back. */
  forgetOthers(): void {
    for (const name of this.#waiting.keys()) if (!this.#seen.has(name)) this.#waiting.delete(name)
    this.#seen = new Set()
    this.#reported = 0
  }
}

function nameOf({ id, at }: Intent): string {
  return `${at.getTime()} ${id}`
}
