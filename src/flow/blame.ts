import { type Clock, type Message, telemetry } from '../core/index.ts'
import type { Call, Calls } from './calls.ts'
import type { Outcome } from './publisher.ts'
import type { RetryPolicy } from './retry-policy.ts'
import { type Delivery, topicOfDelivery } from './source.ts'
import type { Unsettled } from './unsettled.ts'
import type { Breaker, Window } from './window.ts'

/** Messages of one call that failed, but perhaps not by themselves. */
export interface Doubt<D> {
  readonly failed: readonly D[]
  readonly error: unknown
  /** The window's generation in which they went out. */
  readonly generation: number
  /** When they went out, if somebody listens. */
  readonly began: number
  /** Calls with a lower number went out before they failed. */
  readonly before: number
}

/** So many failures make the longest pause. */
const LONGEST = 1000

/** How long the calls beside a failure have to show what it was, in milliseconds. Then it counts as an outage. */
const IN_DOUBT = 1000

export interface BlameSettings {
  readonly flow: string
  readonly window: Window
  readonly retry: RetryPolicy
  readonly clock: Clock
}

/**
 * Who is to blame when what a message needs seems to be down: the destination, or that message? The calls that were in
 * flight at the same time decide. If one of them arrives, the destination was there, and those that failed are marked. If
 * none arrives, they failed together: nobody is charged, and the flow pauses. The rule is in Window; here it is applied.
 */
export class Blame<D extends Delivery<Message>> {
  readonly #settings: BlameSettings
  readonly #unsettled: Unsettled<D>
  readonly #calls: Calls<D>
  readonly #breaker: Breaker
  readonly #onDecided: () => void

  constructor(
    settings: BlameSettings,
    unsettled: Unsettled<D>,
    calls: Calls<D>,
    breaker: Breaker,
    onDecided: () => void,
  ) {
    this.#settings = settings
    this.#unsettled = unsettled
    this.#calls = calls
    this.#breaker = breaker
    this.#onDecided = onDecided
  }

  /** Whether a decision waits for calls that are in flight: it says who may go out next. */
  get undecided(): boolean {
    return this.#unsettled.doubts.length > 0
  }

  /** All messages of a call arrived. */
  succeeded(call: Call<D>): void {
    const { window } = this.#settings
    const { run } = call
    this.#breaker.arrived(run.length, call.generation, call.number)
    if (window.suspects > 0) for (const { message } of run) window.acquit(message.id)
    this.#unsettled.done(run, call.began)
    if (call.marked > 0) window.cleared()
    if (this.undecided) this.#weigh(true)
  }

  /** Not all messages of a call arrived. */
  failed(call: Call<D>, outcomes: readonly Outcome[]): void {
    const { window } = this.#settings
    const { run, began } = call
    const arrived = outcomes.filter(({ kind }) => kind === 'ok').length
    if (arrived > 0) this.#breaker.arrived(arrived, call.generation, call.number)
    run.forEach(({ message }, i) => {
      if (outcomes[i]!.kind === 'down') return
      window.acquit(message.id)
      if (i < call.marked) window.cleared()
    })
    const down = this.#unsettled.closing ? undefined : downIn(outcomes)
    if (down !== undefined && down.untried !== true && call.alone) {
      this.#failedAlone(run[0]!, down.error, began)
      return
    }
    const again = this.#unsettled.judge(run, outcomes, began)
    if (down?.untried === true) this.#noneTried(call, down.error, again)
    else if (down !== undefined) this.#inDoubt(call, down.error, this.#triedOf(again, run, outcomes))
    if (this.undecided) this.#weigh(arrived > 0)
  }

  /** Nothing of a call was sent that did not arrive, since the destination is known to be away. None is to be compared with others. */
  #noneTried(call: Call<D>, error: unknown, again: readonly D[]): void {
    this.#asTheyWere(again)
    if (this.#settings.window.failedTogether(call.generation)) this.#breaker.pause(error)
  }

  /** Those of them that were sent. The others are as they were before. */
  #triedOf(again: readonly D[], run: readonly D[], outcomes: readonly Outcome[]): readonly D[] {
    const untried = new Set(run.filter((_, i) => isUntried(outcomes[i]!)))
    if (untried.size === 0) return again
    const [tried, others]: [D[], D[]] = [[], []]
    for (const ofKey of runsOf(again)) (untried.has(ofKey[0]) ? others : tried).push(...ofKey)
    this.#asTheyWere(others)
    return tried
  }

  #asTheyWere(deliveries: readonly D[]): void {
    const { window } = this.#settings
    const unmarked: D[] = []
    for (const [first, ...behind] of runsOf(deliveries)) {
      if (window.isMarked(first.message.id) && !this.#unsettled.closing) this.#keepMarked(first, behind)
      else unmarked.push(first, ...behind)
    }
    this.#unsettled.putBack(unmarked)
  }

  /** It failed where others arrived, so it spends an attempt. `behind`: those of its key, which did not arrive either. */
  charge(first: D, behind: readonly D[], error: unknown, began: number): void {
    const { type, id, tenant } = first.message
    const about = { type, id, tenant, topic: topicOfDelivery(first), attempt: first.attempts + 1 }
    telemetry['message.suspected'].publish({ flow: this.#settings.flow, error, ...about })
    this.#unsettled.fail([first, ...behind], { kind: 'failed', error }, began)
  }

  /** It has to leave the buffer, and cannot be charged. It stays away as long as a pause may last: others are to come in. */
  sendAway(run: readonly D[], error: unknown, began: number): void {
    const after = this.#settings.retry.outage(LONGEST)
    this.#unsettled.fail(run, { kind: 'failed', error, charged: false, after }, began)
  }

  /** It failed although nothing else was in flight. */
  #failedAlone(delivery: D, error: unknown, began: number): void {
    const { window } = this.#settings
    const { id } = delivery.message
    if (window.isMarked(id)) this.#failedAgain(delivery, [], error, began)
    else if (window.failedAlone(id)) this.charge(delivery, [], error, began)
    else this.#unsettled.postpone(delivery, this.#breaker.pause(error), error, window.alone)
  }

  /** A marked one failed again, and nothing was in flight beside it. */
  #failedAgain(first: D, behind: readonly D[], error: unknown, began: number): void {
    if (this.#settings.window.failedAgain(first.message.id)) this.charge(first, behind, error, began)
    else this.sendAway([first, ...behind], error, began)
  }

  /** They did not fail alone. Was it the destination, or these? The calls in flight beside them will show. */
  #inDoubt(call: Call<D>, error: unknown, failed: readonly D[]): void {
    const { window, clock } = this.#settings
    const { doubts } = this.#unsettled
    const { generation, began } = call
    if (failed.length === 0 || generation !== window.generation) {
      this.#unsettled.putBack(failed)
      return
    }
    const doubt = { failed, error, generation, began, before: window.dispatched }
    doubts.push(doubt)
    if (this.#calls.inFlight === 0) return
    clock.sleep(IN_DOUBT, this.#calls.signal).then(() => {
      if (!doubts.includes(doubt)) return
      this.#failedTogether()
      this.#onDecided()
    })
  }

  /** A call came back, and some had failed before. */
  #weigh(arrived: boolean): void {
    const { doubts } = this.#unsettled
    const { oldest } = this.#calls
    if (arrived) this.#failedBeside()
    // For one of them nothing is in flight any more that could show it.
    else if (doubts.some(({ before }) => oldest >= before)) this.#failedTogether()
  }

  /** Each failed by itself: another was in flight beside it, and arrived. */
  #failedBeside(): void {
    const { window } = this.#settings
    const doubts = this.#unsettled.doubts.splice(0)
    // With a new one among them nobody is charged: it may have taken the others with it.
    const known = this.#allMarked(doubts)
    for (const { failed, error, began } of doubts) {
      for (const [first, ...behind] of runsOf(failed)) {
        const { id } = first.message
        if (known && window.failedBeside(id)) {
          this.charge(first, behind, error, began)
          continue
        }
        if (!known) window.mark(id)
        this.#keepMarked(first, behind)
      }
    }
  }

  /** All that are in doubt: nothing that was in flight beside them arrived. */
  #failedTogether(): void {
    const { window } = this.#settings
    const doubts = this.#unsettled.doubts.splice(0)
    const known = this.#allMarked(doubts)
    const innocent: D[] = []
    for (const { failed, error, began } of doubts) {
      for (const [first, ...behind] of runsOf(failed)) {
        if (this.#unsettled.closing || !window.isMarked(first.message.id)) innocent.push(first, ...behind)
        else if (known) this.#failedAgain(first, behind, error, began)
        else this.#keepMarked(first, behind)
      }
    }
    if (innocent.length === 0) return
    this.#unsettled.putBack(innocent)
    const [{ generation, error }] = doubts as [Doubt<D>]
    if (window.failedTogether(generation)) this.#breaker.pause(error)
  }

  #allMarked(doubts: readonly Doubt<D>[]): boolean {
    const { window } = this.#settings
    return doubts.every(({ failed }) => [...runsOf(failed)].every(([{ message }]) => window.isMarked(message.id)))
  }

  /** It goes out again when it is its turn. */
  #keepMarked(first: D, behind: readonly D[]): void {
    if (first.key !== undefined) this.#unsettled.queue.putWaiting(first.key, behind)
    this.#unsettled.marked.push(first)
  }
}

/** One that was sent, if there is one. */
function downIn(outcomes: readonly Outcome[]): Extract<Outcome, { kind: 'down' }> | undefined {
  const down = outcomes.filter((outcome) => outcome.kind === 'down')
  return down.find((outcome) => !isUntried(outcome)) ?? down[0]
}

function isUntried(outcome: Outcome): boolean {
  return outcome.kind === 'down' && outcome.untried === true
}

/** Those of one key that stand together, and each without a key on its own. */
function* runsOf<D extends Delivery<Message>>(deliveries: readonly D[]): Generator<[D, ...D[]]> {
  for (let from = 0, to = 0; from < deliveries.length; from = to) {
    const first = deliveries[from]!
    for (to = from + 1; first.key !== undefined && deliveries[to]?.key === first.key; ) to++
    yield [first, ...deliveries.slice(from + 1, to)]
  }
}
