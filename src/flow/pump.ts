import { type Clock, DONE, type Message, RELEASE, type Settlement, telemetry } from '../core/index.ts'
import { Lanes } from './lanes.ts'
import { outcomeOf } from './outcome.ts'
import { OK, type Outcome } from './publisher.ts'
import type { RetryPolicy } from './retry-policy.ts'
import { Settler } from './settler.ts'
import type { Delivery, Session, Settled, SourceFeatures } from './source.ts'
import type { Window } from './window.ts'

/** Handles one message: done when it returns, failed when it throws. */
export type HandleOne<D> = (delivery: D, signal: AbortSignal) => unknown

/** Handles a batch: one outcome each, in order. A throw is a failure of all of them together: `down`. */
export type HandleMany<D> = (
  deliveries: readonly D[],
  signal: AbortSignal,
) => readonly Outcome[] | Promise<readonly Outcome[]>

/** What the flow does with what it took: each on its own, or in batches of `size`. */
export type Step<D> =
  | { readonly each: HandleOne<D> }
  | { readonly batch: HandleMany<D>; readonly size: number; readonly ordered: boolean }

export interface PumpSettings<D extends Delivery<Message>> {
  readonly flow: string
  readonly step: Step<D>
  /** How many calls of the step may run at once. */
  readonly concurrency: number
  readonly features: SourceFeatures
  readonly window: Window
  readonly retry: RetryPolicy
  readonly clock: Clock
  /** Told whenever there is more room, or nothing left. */
  readonly onChange: () => void
}

/** How a round went. */
export interface Tally {
  taken: number
  done: number
  retry: number
  dead: number
  release: number
}

/**
 * Between taking and settling, within one session: who may go out now, what becomes of it, and what the source is
 * told. Nothing here waits: it is driven by deliveries coming in, outcomes coming back and time passing.
 */
export class Pump<D extends Delivery<Message>> {
  readonly tally: Tally = { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
  readonly #settings: PumpSettings<D>
  readonly #session: Session<D>
  readonly #lanes = new Lanes<D>()
  readonly #settler: Settler<D>
  readonly #abort = new AbortController()
  readonly #inHand = new Set<D>()
  /** Held keys whose settlement is written, while a take that began before may still bring more of them. */
  readonly #unholdAfterTake: string[] = []
  #bytes = 0
  #calls = 0
  #inFlight = 0
  #alone = false
  #taking = false
  #closing = false
  #pumping = false
  #pausedSince: number | undefined
  #pausedUntil = 0

  constructor(session: Session<D>, settings: PumpSettings<D>) {
    this.#session = session
    this.#settings = settings
    const { flow, clock, retry } = settings
    this.#settler = new Settler(flow, session, clock, retry.breaker, (batch) => this.#settled(batch))
    session.lost.addEventListener('abort', () => this.abort(session.lost.reason), { once: true })
  }

  /** Taken and not yet settled. */
  get count(): number {
    return this.#inHand.size
  }

  get bytes(): number {
    return this.#bytes
  }

  get inFlight(): number {
    return this.#inFlight
  }

  get deliveries(): readonly D[] {
    return [...this.#inHand]
  }

  /** Told by the flow around each take, see `#unholdAfterTake`. */
  set taking(taking: boolean) {
    this.#taking = taking
    if (!taking) for (const key of this.#unholdAfterTake.splice(0)) this.#lanes.unhold(key)
  }

  accept(deliveries: readonly D[]): void {
    this.tally.taken += deliveries.length
    for (const delivery of deliveries) {
      this.#inHand.add(delivery)
      this.#bytes += delivery.size
      if (this.#closing || !this.#lanes.add(delivery)) this.#settle(delivery, RELEASE)
    }
    this.pump()
  }

  /** Sends out whatever may go out now. */
  pump(): void {
    // A handler that answers at once comes back here from within: the loop below goes on for it.
    if (this.#pumping) return
    this.#pumping = true
    while (this.#mayDispatch()) {
      const suspect = this.#settings.window.isSuspect(this.#lanes.peek()!.message.id)
      if (suspect && this.#inFlight > 0) break
      this.#dispatch(suspect || this.#settings.window.size === 1)
    }
    this.#pumping = false
  }

  #mayDispatch(): boolean {
    const { window, concurrency } = this.#settings
    if (this.#closing || this.#alone || this.#calls >= concurrency || this.#lanes.ready === 0) return false
    return (
      this.#inFlight < window.size && !this.paused && !this.#session.lost.aborted && this.#session.live?.() !== false
    )
  }

  /** What the step needs is away, and the next probe is not due. */
  get paused(): boolean {
    return this.#pausedUntil > 0 && this.#settings.clock.monotonic() < this.#pausedUntil
  }

  /** Ends a pause: the next dispatch is the probe. */
  probe(): void {
    this.#pausedUntil = 0
    this.pump()
  }

  /** What has not gone out is given back. */
  giveBack(): void {
    for (const delivery of this.#lanes.clear()) this.#settle(delivery, RELEASE)
  }

  /** No more goes out. */
  close(): void {
    this.#closing = true
    this.giveBack()
  }

  /** Tells what is in flight to give up. */
  abort(reason: unknown): void {
    this.#abort.abort(reason)
    this.#settings.onChange()
  }

  /** Gives back what is still in flight although it was told to give up; its late outcome is ignored. */
  abandon(): void {
    for (const delivery of this.#inHand) this.#settle(delivery, RELEASE)
  }

  /** Resolves when every decided settlement is written, or cannot be. */
  flushed(): Promise<void> {
    return this.#settler.flushed()
  }

  /** From now on a settlement that cannot be written is not tried again: it would keep a stop from ending. */
  lastTry(): void {
    this.#settler.lastTry()
  }

  #dispatch(alone: boolean): void {
    const { step } = this.#settings
    const run = this.#nextRun(alone)
    this.#calls++
    this.#inFlight += run.length
    this.#alone = alone
    const note = alone && this.#session.cautious ? this.#session.note : undefined
    if (note !== undefined) {
      // A crash must find the note: it is written before the message goes out.
      note.call(this.#session, run[0]!).then(
        () => this.#run(run, alone),
        (error) => this.#finished(run, [{ kind: 'down', error }], false),
      )
      return
    }
    this.#run(run, alone, step)
  }

  #nextRun(alone: boolean): D[] {
    const { step, window } = this.#settings
    const first = this.#lanes.take()!
    if (alone || 'each' in step) return [first]
    const size = Math.min(step.size, window.size - this.#inFlight)
    const run = [first]
    for (let last: D | undefined = first; run.length < size; ) {
      last = (step.ordered && last.key !== undefined && this.#lanes.takeWaiting(last.key)) || this.#lanes.peek()
      if (last === undefined) break
      if (last === this.#lanes.peek()) {
        if (window.isSuspect(last.message.id)) break
        this.#lanes.take()
      }
      run.push(last)
    }
    return run
  }

  #run(run: D[], alone: boolean, step = this.#settings.step): void {
    if ('each' in step) {
      this.#runOne(run[0]!, step.each, alone)
      return
    }
    this.#runBatch(run, step.batch, alone)
  }

  async #runBatch(run: D[], handle: HandleMany<D>, alone: boolean): Promise<void> {
    const began = telemetry['message.handled'].active ? this.#settings.clock.monotonic() : 0
    let outcomes: readonly Outcome[]
    try {
      outcomes = await handle(run, this.#abort.signal)
    } catch (error) {
      outcomes = run.map(() => ({ kind: 'down', error }))
    }
    this.#finished(run, outcomes, alone, began)
  }

  #runOne(delivery: D, handle: HandleOne<D>, alone: boolean): void {
    const began = telemetry['message.handled'].active ? this.#settings.clock.monotonic() : 0
    let result: unknown
    try {
      result = handle(delivery, this.#abort.signal)
    } catch (error) {
      result = Promise.reject(error)
    }
    if (!(result instanceof Promise)) {
      this.#finished([delivery], ONE_OK, alone, began)
      return
    }
    result.then(
      () => this.#finished([delivery], ONE_OK, alone, began),
      (error) => this.#finished([delivery], [outcomeOf(error, this.#settings.retry.classify)], alone, began),
    )
  }

  #finished(run: D[], outcomes: readonly Outcome[], alone: boolean, began = 0): void {
    this.#calls--
    this.#inFlight -= run.length
    if (alone) this.#alone = false
    if (this.#session.lost.aborted) {
      // Nothing of this session can be settled any more; it comes again elsewhere.
      for (const delivery of run) this.#forget(delivery)
    } else {
      const down = outcomes.find(isDown)
      if (down === undefined) this.#each(run, outcomes, began)
      else if (this.#closing || this.#abort.signal.aborted) this.#each(run, outcomes, began)
      else this.#down(run, outcomes, down.error, alone, began)
    }
    this.pump()
    this.#settings.onChange()
  }

  #each(run: readonly D[], outcomes: readonly Outcome[], began: number): void {
    let held: string | undefined
    for (let i = 0; i < run.length; i++) {
      const { key } = run[i]!
      // After a failure in a run of one key the rest did not arrive either, and is not to blame.
      if (key !== undefined && key === held && outcomes[i]!.kind !== 'ok') this.#settle(run[i]!, RELEASE)
      else if (this.#one(run, i, outcomes[i]!, began)) held = key
    }
  }

  /** What becomes of one message whose outcome is its own. Answers whether its key is held now. */
  #one(run: readonly D[], at: number, outcome: Outcome, began: number): boolean {
    const delivery = run[at]!
    if (!this.#inHand.has(delivery)) return false // abandoned meanwhile
    const settlement = this.#settlement(delivery, outcome)
    if (began > 0) this.#tell(delivery, settlement, outcome, began)
    if (this.#retriesHere(delivery, settlement)) return false
    this.#settle(delivery, settlement)
    const { key } = delivery
    if (key === undefined || this.#closing) return false
    if (this.#holds(settlement)) {
      for (const waiting of this.#lanes.hold(key)) this.#settle(waiting, RELEASE)
      return true
    }
    // Of a run of one key only the last one opens the lane.
    if (at === run.length - 1 || run[at + 1]!.key !== key) this.#lanes.finished(key)
    return false
  }

  #settlement(delivery: D, outcome: Outcome): Settlement {
    const { retry } = this.#settings
    if (outcome.kind === 'ok') return DONE
    // Neither one that was told to give up and did, nor one in flight when all of it failed while stopping, is to blame.
    if (this.#abort.signal.aborted || outcome.kind === 'down') return RELEASE
    const settlement = retry.decide(delivery.attempts, outcome)
    if (settlement.kind === 'dead') this.#tellDead(delivery, settlement.reason)
    return settlement
  }

  /** The source cannot give it again later, so it stays here, in front of its key. */
  #retriesHere(delivery: D, settlement: Settlement): boolean {
    if (settlement.kind !== 'retry' || this.#settings.features.redelivers || this.#closing) return false
    if (settlement.charged) delivery.attempts++
    this.#settings.clock.sleep(settlement.after, this.#abort.signal).then(() => {
      if (!this.#inHand.has(delivery)) return
      if (this.#closing) this.#settle(delivery, RELEASE)
      else this.#lanes.putLast(delivery)
      this.pump()
    })
    return true
  }

  #holds(settlement: Settlement): boolean {
    if (!this.#settings.features.holdsKeys) return false
    if (settlement.kind === 'dead') return this.#settings.retry.deadKey === 'block'
    return settlement.kind === 'retry'
  }

  /** All of it failed together, or one failed alone; see Window. */
  #down(run: readonly D[], outcomes: readonly Outcome[], error: unknown, alone: boolean, began: number): void {
    const { window, retry, flow, clock } = this.#settings
    if (alone) {
      const [first] = run as [D]
      if (window.failedAlone(first.message.id)) {
        telemetry['message.suspected'].publish({ flow, type: first.message.type, id: first.message.id, error })
        this.#one(run, 0, { kind: 'failed', error }, began)
      } else {
        this.#lanes.putLast(first)
      }
    } else {
      window.failedTogether()
      // Those that did arrive are done; the others are as they were.
      const again = run.filter((delivery, i) => {
        if (outcomes[i]!.kind === 'down') return true
        this.#one(run, i, outcomes[i]!, began)
        return false
      })
      this.#lanes.putBack(again)
    }
    const delay = retry.breaker(window.failures)
    this.#pausedUntil = clock.monotonic() + delay
    this.#pausedSince ??= clock.monotonic()
    telemetry['flow.paused'].publish({ flow, error, retryIn: delay, failures: window.failures })
    clock.sleep(delay, this.#abort.signal).then(() => {
      this.pump()
    })
  }

  #settle(delivery: D, settlement: Settlement): void {
    this.tally[settlement.kind]++
    this.#settler.settle(delivery, settlement)
  }

  /** The source knows: there is room again, and success counts. */
  #settled(batch: readonly Settled<D>[]): void {
    const { window } = this.#settings
    let done = 0
    for (const [delivery, settlement] of batch) {
      this.#forget(delivery)
      if (settlement.kind === 'done') {
        done++
        window.acquit(delivery.message.id)
      } else if (delivery.key !== undefined && this.#holds(settlement)) {
        if (this.#taking) this.#unholdAfterTake.push(delivery.key)
        else this.#lanes.unhold(delivery.key)
      }
    }
    if (done > 0) {
      window.succeeded(done)
      this.#resumed()
    }
    this.pump()
    this.#settings.onChange()
  }

  #resumed(): void {
    if (this.#pausedSince === undefined) return
    const pausedFor = this.#settings.clock.monotonic() - this.#pausedSince
    this.#pausedSince = undefined
    this.#pausedUntil = 0
    telemetry['flow.resumed'].publish({ flow: this.#settings.flow, pausedFor })
  }

  #forget(delivery: D): void {
    if (this.#inHand.delete(delivery)) this.#bytes -= delivery.size
  }

  #tell(delivery: D, settlement: Settlement, outcome: Outcome, began: number): void {
    const { flow, clock } = this.#settings
    const { type, id, tenant } = delivery.message
    telemetry['message.handled'].publish({
      flow,
      type,
      id,
      tenant,
      result: settlement.kind,
      took: clock.monotonic() - began,
      attempt: delivery.attempts + 1,
      error: outcome.kind === 'ok' ? undefined : outcome.error,
    })
  }

  #tellDead(delivery: D, reason: string): void {
    const { type, id, tenant } = delivery.message
    const attempt = delivery.attempts + 1
    telemetry['message.dead'].publish({ flow: this.#settings.flow, type, id, reason, attempt, tenant })
  }
}

const ONE_OK: readonly Outcome[] = [OK]

function isDown(outcome: Outcome): outcome is Extract<Outcome, { kind: 'down' }> {
  return outcome.kind === 'down'
}
