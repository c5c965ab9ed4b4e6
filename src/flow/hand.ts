import { type Clock, type Message, telemetry, warnOnce } from '../core/index.ts'
import { Doubts } from './doubts.ts'
import type { Tally } from './flow-options.ts'
import { Handled } from './handled.ts'
import { Lanes } from './lanes.ts'
import type { Outcome } from './publisher.ts'
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

export interface HandSettings {
  readonly flow: string
  readonly features: SourceFeatures
  readonly retry: RetryPolicy
  readonly clock: Clock
  readonly condition: Condition
  /** How much may be in hand. */
  readonly count: number
  readonly bytes: number
  /** How many of one key are worth having in hand. */
  readonly enough: number
}

export type Failure = Exclude<Outcome, { kind: 'ok' }>

/**
 * What was taken and is not yet settled: where each delivery waits, what its outcome means for it and for those of its
 * key, and what the source is told.
 */
export class Hand<D extends Delivery<Message>> {
  readonly tally: Tally = { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
  readonly lanes: Lanes<D>
  readonly handled: Handled<D>
  readonly doubts = new Doubts<D>()
  /** Failed before while others arrived. They go out again, but few of them at once; see Window. */
  readonly marked: D[] = []
  count = 0
  bytes = 0
  /** Whatever comes back or comes in now is given back; nothing is tried again here. */
  closing = false
  readonly #settings: HandSettings
  readonly #settler: Settler<D>
  readonly #abort: AbortSignal
  readonly #onReady: () => void
  readonly #onSettled: (done: boolean) => void
  /** Waiting here for another try, because the source could not give them again. */
  readonly #resting = new Set<D>()
  /** Held keys whose settlement is written, while a take that began before may still bring more of them. */
  readonly #unholdAfterTake: string[] = []
  /** Came in vain, mostly because their key is held; the source does not know yet that it has them again. */
  readonly #refused = new Set<D>()
  /** Their settlements cannot be written, and the others do not wait for them: they are in nobody's count. */
  readonly #aside = new Set<D>()
  /** Those of them that were to be given back: what stands behind them in their keys must not overtake them. */
  readonly #stuck = new Set<D>()
  #taking = 0

  constructor(
    session: Session<D>,
    settings: HandSettings,
    abort: AbortSignal,
    onReady: () => void,
    onSettled: (done: boolean) => void,
  ) {
    const { flow, clock, retry, condition } = settings
    this.#settings = settings
    this.lanes = new Lanes(settings.enough)
    this.#abort = abort
    this.handled = new Handled(flow, clock)
    this.#onReady = onReady
    this.#onSettled = onSettled
    this.#settler = new Settler(flow, session, clock, retry.outage, condition, {
      settled: (batch, written) => this.#settled(batch, written),
      condemned: (delivery, before, reason) => this.#condemned(delivery, before, reason),
      aside: (delivery, settlement) => this.#putAside(delivery, settlement),
    })
  }

  /** All that is not out with a call of the step. */
  get waiting(): readonly D[] {
    const { deliveries } = this.doubts
    return [...this.#settler.unwritten, ...this.#resting, ...deliveries, ...this.marked, ...this.lanes.all()]
  }

  get full(): boolean {
    const { count, bytes } = this.#settings
    return this.count >= count || this.bytes >= bytes || this.#aside.size >= count
  }

  /**
   * What was refused must be with the source again before the next take: that one might bring what stands behind it,
   * when its key is held no more.
   */
  get refusing(): boolean {
    return this.#refused.size > 0
  }

  /** A take begins: what it brings may be older than what is settled meanwhile. */
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
      if (!this.closing && this.lanes.add(delivery)) continue
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

  /** All of a run arrived. */
  done(run: readonly D[], began: number): void {
    for (let i = 0; i < run.length; i++) {
      const delivery = run[i]!
      const { key } = delivery
      this.settle(delivery, DONE)
      // Of a run of one key only the last one opens the lane.
      if (key !== undefined && run[i + 1]?.key !== key) this.lanes.finished(key)
    }
    this.handled.tell(run, 'done', undefined, began)
  }

  /** Not all of a run arrived. Answers those whose failure was not their own: they are as they were. */
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
    let failure: Failure | undefined
    for (let i = from; i < to; i++) {
      const outcome = outcomes[i]!
      if (outcome.kind !== 'ok') {
        failure ??= outcome
        rest.push(run[i]!)
        continue
      }
      this.handled.tell([run[i]!], 'done', undefined, began)
      this.settle(run[i]!, DONE)
    }
    const { key } = run[from]!
    if (failure === undefined) {
      if (key !== undefined) this.lanes.finished(key)
    } else if (failure.kind === 'down' && !this.closing) {
      again.push(...rest)
    } else {
      this.fail(rest, failure, began)
    }
  }

  /** The first of these failed by itself. The others are of its key and behind it: they did not arrive, unblamed. */
  fail([failed, ...behind]: readonly D[], failure: Failure, began: number): void {
    const delivery = failed!
    const { key } = delivery
    const settlement = this.#settlement(delivery, failure)
    this.handled.tell([delivery], settlement.kind, failure.error, began)
    if (settlement.kind === 'dead') this.#tellDead(delivery, settlement.reason)
    if (this.closing) {
      this.settle(delivery, settlement)
      this.release(behind)
      return
    }
    if (settlement.kind === 'retry' && !this.#settings.features.redelivers) {
      if (key !== undefined) this.lanes.putWaiting(key, behind)
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
      this.release(this.lanes.hold(key))
      return
    }
    this.lanes.putWaiting(key, behind)
    this.lanes.finished(key)
  }

  /**
   * Others are to go before this one, uncharged. Where no others could come in, because the buffer is full of those that
   * failed alone (there are `suspects`), it leaves, to come again later.
   */
  postpone(delivery: D, after: number, error: unknown, suspects: number): void {
    const alone = this.full && this.lanes.ready < suspects
    if (!alone || !this.#settings.features.redelivers) this.lanes.putLast(delivery)
    else this.#settleFailed(delivery, { kind: 'retry', after, error, charged: false }, [])
  }

  #settlement(delivery: D, failure: Failure): Settlement {
    // Neither one that was told to give up and did, nor one in flight when all failed while stopping, is to blame.
    if (this.#abort.aborted || failure.kind === 'down') return RELEASE
    const settlement = this.#settings.retry.decide(delivery.attempts, failure)
    const impossible = settlement.kind === 'retry' && this.closing && !this.#settings.features.redelivers
    return impossible ? RELEASE : settlement
  }

  /** The source cannot give it again later, so it stays here, in front of its key. */
  #rest(delivery: D, { after, charged }: Extract<Settlement, { kind: 'retry' }>): void {
    if (charged) delivery.attempts++
    this.#resting.add(delivery)
    this.#settings.clock.sleep(after, this.#abort).then(() => {
      if (!this.#resting.delete(delivery)) return
      this.lanes.putLast(delivery)
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

  /** What is not out with a call is given back. */
  giveBack(): void {
    this.release(this.#resting)
    this.#resting.clear()
    for (const { failed } of this.doubts.clear()) this.release(failed)
    this.release(this.marked.splice(0))
    this.release(this.lanes.clear())
  }

  /** Resolves when every decided settlement is written, or cannot be. */
  flushed(): Promise<void> {
    return this.#settler.flushed()
  }

  /** From now on a settlement that cannot be written is not tried again: it would keep a stop from ending. */
  lastTry(): void {
    this.#settler.lastTry()
  }

  end(): void {
    this.#settler.end()
  }

  /** The source knows: there is room again. */
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

  /** The source refused its settlement, so it is dead instead. */
  #condemned(delivery: D, before: Settlement, reason: string): void {
    if (before.kind === 'dead') return
    this.tally[before.kind]--
    this.tally.dead++
    this.#tellDead(delivery, reason)
    // Where a dead one holds nobody, its key is open with the next take.
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
      this.release(this.lanes.hold(key))
    }
    if (this.#aside.size === this.#settings.count) {
      const message = `${this.#aside.size} settlements were refused by the source; nothing more is taken before some are written`
      warnOnce(`flow ${this.#settings.flow}`, message)
      this.#settings.condition.hinder('aside', 'failing', message)
    }
    this.#onSettled(false)
  }

  /** Some were put aside: a take may bring nothing but others of their keys. */
  get hasAside(): boolean {
    return this.#aside.size > 0
  }

  #unhold(key: string): void {
    for (const stuck of this.#stuck) if (stuck.key === key) return
    if (this.#taking > 0) this.#unholdAfterTake.push(key)
    else this.lanes.unhold(key)
  }

  #tellDead(delivery: D, reason: string): void {
    const { type, id, tenant } = delivery.message
    const about = { type, id, tenant, topic: topicOfDelivery(delivery), attempt: delivery.attempts + 1 }
    telemetry['message.dead'].publish({ flow: this.#settings.flow, reason, ...about })
  }
}
