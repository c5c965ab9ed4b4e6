import { type Clock, type RawMessage, Unavailable, Wakeup, WaybillError } from '../../core/index.ts'
import type { Demand, Session, Settled, Source } from '../../flow/index.ts'
import { QueueHolder } from './key-messages.ts'
import { type InProcessDelivery, Queue } from './queue.ts'

export interface SubscriptionSettings {
  readonly topics: readonly string[]
  readonly limit: number
  readonly deadKey: 'block' | 'continue'
}

/** A named queue and everybody who takes from it: they compete for its messages. */
export class Subscription implements Source<InProcessDelivery> {
  readonly name: string
  readonly system = 'in_process'
  readonly features = { redelivers: true, holdsKeys: true } as const
  readonly settings: SubscriptionSettings
  readonly queue: Queue
  readonly #matches: readonly ((topic: string) => boolean)[]
  readonly #clock: Clock
  readonly #sessions = new Set<InProcessSession>()
  readonly #wakeup: Wakeup
  #closed = false

  constructor(
    name: string,
    settings: SubscriptionSettings,
    matches: readonly ((topic: string) => boolean)[],
    clock: Clock,
  ) {
    this.name = name
    this.settings = settings
    this.#matches = matches
    this.#clock = clock
    this.#wakeup = new Wakeup(clock)
    this.queue = new Queue(clock, settings.deadKey === 'block', () => this.#wakeup.wake())
  }

  matches(topic: string): boolean {
    return this.#matches.some((match) => match(topic))
  }

  get full(): boolean {
    return this.queue.size >= this.settings.limit
  }

  add(message: RawMessage, size: number): void {
    this.queue.add(message, size)
  }

  async open(): Promise<Session<InProcessDelivery>> {
    if (this.#closed) throw new Unavailable(`the in-process broker of subscription ${this.name} is closed`)
    const session = new InProcessSession(this, () => this.#sessions.delete(session))
    this.#sessions.add(session)
    return session
  }

  /** Every open session is lost; what it had not settled is ready again. */
  disconnect(reason: unknown): void {
    for (const session of [...this.#sessions]) session.lose(reason)
  }

  close(reason: unknown): void {
    this.#closed = true
    this.disconnect(reason)
  }

  /** Until there may be something for this holder, or `ms` have passed, or one of the signals aborts. */
  async wait(holder: QueueHolder, ms: number, signals: readonly AbortSignal[]): Promise<void> {
    if (signals.some((signal) => signal.aborted) || this.queue.available(holder)) return
    const { nextDue } = this.queue
    const until = nextDue === undefined ? ms : Math.min(ms, Math.max(0, nextDue - this.#clock.monotonic()))
    await this.#wakeup.pause(until, ...signals)
  }
}

class InProcessSession implements Session<InProcessDelivery> {
  readonly #subscription: Subscription
  readonly #holder = new QueueHolder()
  readonly #lost = new AbortController()
  readonly #onEnd: () => void
  #open = true

  constructor(subscription: Subscription, onEnd: () => void) {
    this.#subscription = subscription
    this.#onEnd = onEnd
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  async take(demand: Demand, signal: AbortSignal): Promise<readonly InProcessDelivery[]> {
    if (!this.#open || signal.aborted) return []
    return this.#subscription.queue.take(this.#holder, demand)
  }

  wait(ms: number, signal: AbortSignal): Promise<void> {
    if (!this.#open) return Promise.resolve()
    return this.#subscription.wait(this.#holder, ms, [signal, this.lost])
  }

  async settle(batch: readonly Settled<InProcessDelivery>[]): Promise<number> {
    let stale = 0
    for (const [delivery, settlement] of batch) {
      if (!this.#subscription.queue.settle(this.#holder, delivery, settlement)) stale++
    }
    return stale
  }

  async close(): Promise<void> {
    this.#end()
  }

  lose(reason: unknown): void {
    this.#end()
    this.#lost.abort(reason ?? new WaybillError('LOST', `the session with ${this.#subscription.name} is lost`))
  }

  #end(): void {
    if (!this.#open) return
    this.#open = false
    this.#subscription.queue.returnAll(this.#holder)
    this.#onEnd()
  }
}
