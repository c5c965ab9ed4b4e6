import { type Clock, type Message, telemetry, warnOnce } from '../core/index.ts'
import type { Doubt } from './blame.ts'
import type { FromOutbox, Tally } from './flow-options.ts'
import { Handled } from './handled.ts'
import { KeyedQueue } from './keyed-queue.ts'
import type { FailedOutcome, Outcome } from './publisher.ts'
import type { RetryPolicy } from './retry-policy.ts'
import { Settler } from './settler.ts'
import {
  type Delivery,
  DONE,
  RELEASE,
  type Session,
  type Settled,
  type Settlement,
  type SourceFeatures,
  topicOfDelivery,
} from './source.ts'
import type { Condition } from './status.ts'

export interface UnsettledSettings {
  readonly flow: string
  readonly outbox: FromOutbox | undefined
  readonly features: SourceFeatures
  readonly retry: RetryPolicy
  readonly clock: Clock
  readonly condition: Condition
  /** How much may be unsettled at once. */
  readonly count: number
  readonly bytes: number
  /** How many of one key are worth buffering. */
  readonly enough: number
}

/**
 * Everything a session has taken and not yet settled: where each delivery waits, what its outcome means for it and for the
 * others of its key, and which settlement the source gets.
 */
export class Unsettled<D extends Delivery<Message>> {
  readonly tally: Tally = { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
  readonly queue: KeyedQueue<D>
  readonly handled: Handled<D>
  /** Failures of which nobody knows yet whether the message or the destination is to blame; see Blame. */
  readonly doubts: Doubt<D>[] = []
  /** Failed before while others arrived. They go out again, but only few at once; see Window. */
  readonly marked: D[] = []
  count = 0
  bytes = 0
  /** Whatever returns or comes in now is released; nothing is tried again here. */
  closing = false
  readonly #settings: UnsettledSettings
  readonly #settler: Settler<D>
  readonly #abort: AbortSignal
  readonly #onReady: () => void
  readonly #onSettled: (done: boolean) => void
  /** Waiting here for another try, because the source cannot redeliver them. */
  readonly #resting = new Set<D>()
  /** Held keys whose failure is settled, while a take that began before that may still bring more of them. */
  readonly #unholdAfterTake: string[] = []
  /** Released on arrival because their key is held; the release is not written yet. */
  readonly #refused = new Set<D>()
  /** Their settlements cannot be written, and the others do not wait for them: they count against no limit. */
  readonly #aside = new Set<D>()
  /** Those of them that were to be released: what is behind them in their keys must not overtake them. */
  readonly #stuck = new Set<D>()
  #taking = 0

  constructor(
    session: Session<D>,
    settings: UnsettledSettings,
    abort: AbortSignal,
    onReady: () => void,
    onSettled: (done: boolean) => void,
  ) {
    const { flow, outbox, clock, retry, condition } = settings
    this.#settings = settings
    this.queue = new KeyedQueue(settings.enough)
    this.#abort = abort
    const now = session.now === undefined ? undefined : () => session.now!()
    this.handled = new Handled(
      flow,
      clock,
      outbox?.publishes ? { ...outbox, now } : undefined,
      outbox?.publishes !== false,
    )
    this.#onReady = onReady
    this.#onSettled = onSettled
    this.#settler = new Settler(flow, session, clock, retry.outage, condition, {
      settled: (batch, written) => this.#settled(batch, written),
      condemned: (delivery, before, reason) => this.#condemned(delivery, before, reason),
      aside: (delivery, settlement) => this.#putAside(delivery, settlement),
    })
  }

  /** Everything that is not in flight. */
  get waiting(): readonly D[] {
    const inDoubt = this.doubts.flatMap(({ failed }) => failed)
    return [...this.#settler.unwritten, ...this.#resting, ...inDoubt, ...this.marked, ...this.queue.all()]
  }

  get full(): boolean {
    const { count, bytes } = this.#settings
    return this.count >= count || this.bytes >= bytes || this.#aside.size >= count
  }

  /**
   * What was released on arrival has to be back at the source before the next take. That take might bring what is behind it
   * in a key that is no longer held.
   */
  get refusing(): boolean {
    return this.#refused.size > 0
  }

  /** A take begins. What it brings may be older than what is settled in the meantime. */
  beginTake(): void {
    this.#taking++
  }

  /** Returns how many may go out. */
  endTake(deliveries: readonly D[]): number {
    let accepted = deliveries.length
    this.tally.taken += deliveries.length
    this.count += deliveries.length
    for (const delivery of deliveries) {
      this.bytes += delivery.size
      if (!this.closing && this.queue.add(delivery)) continue
      accepted--
      this.#refused.add(delivery)
      this.settle(delivery, RELEASE)
    }
    this.#taking--
    if (this.#taking === 0) for (const key of this.#unholdAfterTake.splice(0)) this.#unhold(key)
    return accepted
  }

  settle(delivery: D, settlement: Settlement): void {
    this.tally[settlement.kind]++
    this.#settler.settle(delivery, settlement)
  }

  forget(delivery: D): void {
    this.count--
    this.bytes -= delivery.size
  }

  /** All of a run have arrived. */
  done(run: readonly D[], began: number): void {
    for (let i = 0; i < run.length; i++) {
      const delivery = run[i]!
      const { key } = delivery
      this.settle(delivery, DONE)
      // Of a run of one key only the last one lets the next go.
      if (key !== undefined && run[i + 1]?.key !== key) this.queue.finished(key)
    }
    this.handled.report(run, 'done', undefined, began)
  }

  /** Not all of a run have arrived. Returns those whose failure was not their own: they are as they were. */
  judge(run: readonly D[], outcomes: readonly Outcome[], began: number): D[] {
    const again: D[] = []
    for (let from = 0, to = 0; from < run.length; from = to) {
      const { key } = run[from]!
      for (to = from + 1; key !== undefined && run[to]?.key === key; ) to++
      this.#judgeKey(run, outcomes, from, to, began, again)
    }
    return again
  }

  #judgeKey(
    run: readonly D[],
    outcomes: readonly Outcome[],
    from: number,
    to: number,
    began: number,
    again: D[],
  ): void {
    const rest: D[] = []
    let failure: FailedOutcome | undefined
    for (let i = from; i < to; i++) {
      const outcome = outcomes[i]!
      if (outcome.kind !== 'ok') {
        failure ??= outcome
        rest.push(run[i]!)
        continue
      }
      this.handled.report([run[i]!], 'done', undefined, began)
      this.settle(run[i]!, DONE)
    }
    const { key } = run[from]!
    if (failure === undefined) {
      if (key !== undefined) this.queue.finished(key)
    } else if (failure.kind === 'down' && !this.closing) {
      again.push(...rest)
    } else {
      this.fail(rest, failure, began)
    }
  }

  /** The first of these failed by itself. The others are behind it in its key: they did not arrive either, without blame. */
  fail([failed, ...behind]: readonly D[], failure: FailedOutcome, began: number): void {
    const delivery = failed!
    const { key } = delivery
    const settlement = this.#settlement(delivery, failure)
    this.handled.report([delivery], settlement.kind, failure.error, began)
    if (settlement.kind === 'dead') this.#reportDead(delivery, settlement.reason, settlement.error)
    if (settlement.kind === 'retry' && settlement.charged) this.#reportRetry(delivery, settlement)
    if (this.closing) {
      this.settle(delivery, settlement)
      this.release(behind)
      return
    }
    if (settlement.kind === 'retry' && !this.#settings.features.redelivers) {
      if (key !== undefined) this.queue.putWaiting(key, behind)
      this.#rest(delivery, settlement)
      return
    }
    this.#settleFailed(delivery, settlement, behind)
  }

  #settleFailed(delivery: D, settlement: Settlement, behind: readonly D[]): void {
    const { key } = delivery
    this.settle(delivery, settlement)
    if (key === undefined) return
    if (this.#holds(settlement)) {
      this.release(behind)
      this.release(this.queue.hold(key))
      return
    }
    this.queue.putWaiting(key, behind)
    this.queue.finished(key)
  }

  /**
   * Others are to go before this one, which is not charged. Where no others could come in, because the buffer is full of
   * those that failed alone (there are `suspects`), it leaves and comes again later.
   */
  postpone(delivery: D, after: number, error: unknown, suspects: number): void {
    const alone = this.full && this.queue.ready < suspects
    if (!alone || !this.#settings.features.redelivers) this.queue.putLast(delivery)
    else this.#settleFailed(delivery, { kind: 'retry', after, error, charged: false }, [])
  }

  #settlement(delivery: D, failure: FailedOutcome): Settlement {
    // One that was asked to stop and did is not to blame, nor one in flight when all failed during a stop.
    if (this.#abort.aborted || failure.kind === 'down') return RELEASE
    const settlement = this.#settings.retry.decide(delivery.attempts, failure)
    const impossible = settlement.kind === 'retry' && this.closing && !this.#settings.features.redelivers
    return impossible ? RELEASE : settlement
  }

  /** The source cannot redeliver it later, so it stays here, in front of its key. */
  #rest(delivery: D, { after, charged }: Extract<Settlement, { kind: 'retry' }>): void {
    if (charged) delivery.attempts++
    this.#resting.add(delivery)
    this.#settings.clock.sleep(after, this.#abort).then(() => {
      if (!this.#resting.delete(delivery)) return
      this.queue.putLast(delivery)
      this.#onReady()
    })
  }

  #holds(settlement: Settlement): boolean {
    if (!this.#settings.features.holdsKeys) return false
    if (settlement.kind === 'dead') return this.#settings.retry.deadKey === 'block'
    return settlement.kind === 'retry'
  }

  release(deliveries: Iterable<D>): void {
    for (const delivery of deliveries) this.settle(delivery, RELEASE)
  }

  /** They are as they were before they went out. */
  putBack(run: readonly D[]): void {
    if (this.closing) this.release(run)
    else this.queue.putBack(run)
  }

  /** Releases everything that is not in flight. */
  releaseWaiting(): void {
    this.release(this.#resting)
    this.#resting.clear()
    for (const { failed } of this.doubts.splice(0)) this.release(failed)
    this.release(this.marked.splice(0))
    this.release(this.queue.clear())
  }

  /** Resolves when every decided settlement is written, or cannot be. */
  flushed(): Promise<void> {
    return this.#settler.flushed()
  }

  /** From now on a settlement that cannot be written is not repeated: it would keep a stop from ending. */
  lastTry(): void {
    this.#settler.lastTry()
  }

  end(): void {
    this.#settler.end()
  }

  /** They are settled with the source: there is room again. */
  #settled(batch: readonly Settled<D>[], written: boolean): void {
    const holdsKeys = this.#settings.features.holdsKeys === true
    let done = false
    for (const [delivery, settlement] of batch) {
      if (this.#aside.size === 0 || !this.#aside.delete(delivery)) this.forget(delivery)
      else if (this.#stuck.delete(delivery)) this.#unhold(delivery.key!)
      if (this.#refused.size > 0) this.#refused.delete(delivery)
      if (settlement.kind === 'done') done = true
      else if (holdsKeys && delivery.key !== undefined && this.#holds(settlement)) this.#unhold(delivery.key)
    }
    if (this.#aside.size < this.#settings.count) this.#settings.condition.clear('aside')
    this.#onSettled(done && written)
  }

  /** The source refused its settlement, so it was settled as dead instead. */
  #condemned(delivery: D, before: Settlement, reason: string): void {
    if (before.kind === 'dead') return
    this.tally[before.kind]--
    this.tally.dead++
    this.#reportDead(delivery, reason)
    // Where a dead one does not block its key, the next take may bring more of it.
    if (delivery.key !== undefined && this.#settings.retry.deadKey === 'continue') this.#unhold(delivery.key)
  }

  #putAside(delivery: D, { kind }: Settlement): void {
    const { key } = delivery
    this.forget(delivery)
    this.#aside.add(delivery)
    // The next take does not wait for it, but its key does.
    this.#refused.delete(delivery)
    if (kind === 'release' && key !== undefined && this.#settings.features.holdsKeys) {
      this.#stuck.add(delivery)
      this.release(this.queue.hold(key))
    }
    if (this.#aside.size === this.#settings.count) {
      const message = `${this.#aside.size} settlements were refused by the source; nothing more is taken before some are written`
      warnOnce(`flow ${this.#settings.flow}`, message)
      this.#settings.condition.hinder('aside', 'failing', message)
    }
    this.#onSettled(false)
  }

  /** Some were put aside. A take may bring nothing but others of their keys. */
  get hasAside(): boolean {
    return this.#aside.size > 0
  }

  #unhold(key: string): void {
    for (const stuck of this.#stuck) if (stuck.key === key) return
    if (this.#taking > 0) this.#unholdAfterTake.push(key)
    else this.queue.unhold(key)
  }

  #reportRetry(delivery: D, { after, error }: Settlement & { kind: 'retry' }): void {
    const { type, id, tenant } = delivery.message
    const about = { type, id, tenant, topic: topicOfDelivery(delivery), attempt: delivery.attempts + 1 }
    const { flow, outbox } = this.#settings
    telemetry['message.retrying'].publish({ flow, error, retryIn: after, ...about, table: outbox?.table })
  }

  #reportDead(delivery: D, reason: string, error?: unknown): void {
    const { type, id, tenant } = delivery.message
    const about = { type, id, tenant, topic: topicOfDelivery(delivery), attempt: delivery.attempts + 1 }
    const { flow, outbox } = this.#settings
    telemetry['message.dead'].publish({ flow, reason, error, ...about, table: outbox?.table })
  }
}
