import { checkOptions, type Message, onAbort, type RawMessage, WaybillError } from '../core/index.ts'
import type { Delivery, Demand, Session, Settled, Settlement, Source, SourceFeatures } from '../flow/index.ts'
import { within } from './conformance.ts'

/** A message to give, alone or with the attempts it has already cost; or an error to fail the take with. */
export type Scripted<M extends Message = RawMessage> = M | { message: M; attempts: number } | Error

/** What a scripted source gives, and when. */
export interface ScriptedOptions {
  name?: string
  features?: SourceFeatures
}

/** What was settled, and how. */
export interface SettledRecord<M extends Message = RawMessage> {
  readonly message: M
  readonly attempts: number
  readonly settlement: Settlement
}

/**
 * A source for tests: each take gives the next of the scripted batches (an error in one fails that take), and every
 * settlement is written down. It gives nothing again: what a source does after a retry is for its own tests.
 */
export interface ScriptedSource<M extends Message = RawMessage> extends Source<Delivery<M>> {
  /** In the order they were written. */
  readonly settlements: readonly SettledRecord<M>[]
  /** How each message was settled last, by id. */
  settlementOf(id: string): Settlement | undefined
  /** How often `open` succeeded. */
  readonly opened: number
  readonly closed: number
  /** Taken and neither settled nor lost. */
  readonly unsettled: number
  /** One more batch, for the next take. */
  push(...batch: readonly Scripted<M>[]): void
  /** The session is lost, as when a lease expires; what was unsettled can no longer be settled. */
  lose(reason?: unknown): void
  /** The next so many settles fail before they write anything. */
  failSettles(times: number, error?: unknown): void
  /** The next so many opens fail. */
  failOpens(times: number, error?: unknown): void
  /** Resolves when so many settlements are written; rejects after `limit` (real) milliseconds. */
  settled(count: number, limit?: number): Promise<readonly SettledRecord<M>[]>
}

/** A source that gives what a test says, and remembers how each was settled. */
export function scriptedSource<M extends Message = RawMessage>(
  batches: readonly (readonly Scripted<M>[])[] = [],
  options: ScriptedOptions = {},
): ScriptedSource<M> {
  checkOptions('scripted source', options, { name: true, features: true })
  return new Script(batches, options)
}

class Script<M extends Message> implements ScriptedSource<M> {
  readonly name: string
  readonly features: SourceFeatures
  readonly settlements: SettledRecord<M>[] = []
  opened = 0
  closed = 0
  readonly #batches: (readonly Scripted<M>[])[]
  readonly #waiting = new Set<() => void>()
  #failures = { open: 0, settle: 0, error: undefined as unknown }
  #current: { controller: AbortController; unsettled: Set<Delivery<M>> } | undefined

  constructor(batches: readonly (readonly Scripted<M>[])[], options: ScriptedOptions) {
    this.#batches = [...batches]
    this.name = options.name ?? 'scripted'
    this.features = options.features ?? {}
  }

  get unsettled(): number {
    return this.#current?.unsettled.size ?? 0
  }

  settlementOf(id: string): Settlement | undefined {
    return this.settlements.findLast(({ message }) => message.id === id)?.settlement
  }

  push(...batch: readonly Scripted<M>[]): void {
    this.#batches.push(batch)
    this.#wake()
  }

  lose(reason: unknown = new WaybillError('LOST', `the session of ${this.name} was told to be lost`)): void {
    const current = this.#current
    this.#current = undefined
    current?.unsettled.clear()
    current?.controller.abort(reason)
  }

  failSettles(times: number, error: unknown = new Error('settling was told to fail')): void {
    this.#failures = { ...this.#failures, settle: times, error }
  }

  failOpens(times: number, error: unknown = new Error('opening was told to fail')): void {
    this.#failures = { ...this.#failures, open: times, error }
  }

  async settled(count: number, limit = 5000): Promise<readonly SettledRecord<M>[]> {
    const enough = (async () => {
      while (this.settlements.length < count) await this.#change()
    })()
    await within(limit, enough, () => `${this.settlements.length} of ${count} settlements are written`)
    return this.settlements
  }

  async open(): Promise<Session<Delivery<M>>> {
    if (this.#failures.open > 0) {
      this.#failures.open--
      throw this.#failures.error
    }
    this.opened++
    const controller = new AbortController()
    const unsettled = new Set<Delivery<M>>()
    this.#current = { controller, unsettled }
    return {
      lost: controller.signal,
      take: async (demand) => this.#take(demand, unsettled),
      wait: (_ms, signal) => this.#wait([signal, controller.signal]),
      settle: async (batch) => this.#settle(batch, unsettled),
      close: async () => {
        this.closed++
        unsettled.clear()
      },
    }
  }

  #take({ count }: Demand, unsettled: Set<Delivery<M>>): Delivery<M>[] {
    const batch = this.#batches.shift() ?? []
    const failure = batch.find((one) => one instanceof Error)
    if (failure !== undefined) throw failure
    const given = batch as readonly Exclude<Scripted<M>, Error>[]
    // More than was asked for stays in front.
    if (given.length > count) this.#batches.unshift(given.slice(count))
    return given.slice(0, count).map((one) => {
      const { message, attempts } = 'message' in one ? one : { message: one, attempts: 0 }
      const delivery = { message, key: message.key, attempts, size: 1 }
      unsettled.add(delivery)
      return delivery
    })
  }

  #settle(batch: readonly Settled<Delivery<M>>[], unsettled: Set<Delivery<M>>): number {
    if (this.#failures.settle > 0) {
      this.#failures.settle--
      throw this.#failures.error
    }
    let stale = 0
    for (const [delivery, settlement] of batch) {
      if (!unsettled.delete(delivery)) stale++
      else this.settlements.push({ message: delivery.message, attempts: delivery.attempts, settlement })
    }
    this.#wake()
    return stale
  }

  #change(): Promise<void> {
    return new Promise((resolve) => this.#waiting.add(resolve))
  }

  async #wait(signals: readonly AbortSignal[]): Promise<void> {
    if (signals.some(({ aborted }) => aborted)) return
    const over = this.#change()
    const forget = signals.map((signal) => onAbort(signal, this.#wake))
    await over
    for (const takeBack of forget) takeBack()
  }

  readonly #wake = (): void => {
    for (const wake of this.#waiting) wake()
    this.#waiting.clear()
  }
}
