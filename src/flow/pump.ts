import {
  asError,
  blameless,
  type Changes,
  type Message,
  onAbort,
  promiseOf,
  telemetry,
  Unavailable,
  WaybillError,
} from '../core/index.ts'
import { Call, downIn, failuresAmong } from './call.ts'
import { Deadlines, sharedController, timedCall, tooLong } from './deadlines.ts'
import type { Doubt } from './doubts.ts'
import type { HandleMany, HandleOne, Step } from './flow-options.ts'
import { Hand, type HandSettings } from './hand.ts'
import { type Outcome, outcomeOf } from './publisher.ts'
import { type Delivery, type Session, topicOfDelivery } from './source.ts'
import { Breaker, type BreakerSettings, type Window } from './window.ts'

export interface PumpSettings<D extends Delivery<Message>> extends HandSettings, BreakerSettings {
  readonly step: Step<D>
  /** How long one call may take, in milliseconds. A handler has failed then, a batch is `down`. `undefined`: for ever. */
  readonly timeout: number | undefined
  /** How many calls of the step may run at once. */
  readonly concurrency: number
  /** Told whenever there is more room, or nothing left. */
  readonly changes: Changes
}

/** How soon a session that was not live is asked again, unless something else comes first. */
const ASK_AGAIN = 250

/** So many failures make the longest pause. */
const LONGEST = 1000

/** How long those that were out beside a failure have to tell what it was, in milliseconds. Then it counts as an outage. */
const IN_DOUBT = 1000

/**
 * Between taking and settling, within one session: who may go out now, and how its call ended. Nothing here waits: it
 * is driven by deliveries coming in, outcomes coming back and time passing.
 */
export class Pump<D extends Delivery<Message>> {
  readonly hand: Hand<D>
  readonly breaker: Breaker
  inFlight = 0
  readonly #settings: PumpSettings<D>
  readonly #window: Window
  readonly #session: Session<D>
  readonly #abort = sharedController()
  readonly #deadlines: Deadlines<Call<D>> | undefined
  readonly #calls: Call<D>[] = []
  readonly #idle: Call<D>[] = []
  /** How many of those that are marked are out. */
  #markedOut = 0
  #alone = false
  #pumping = false
  #lost = false
  #ended = false
  #asking = false

  constructor(session: Session<D>, settings: PumpSettings<D>) {
    this.#session = session
    this.#settings = settings
    this.#window = settings.window
    const { signal } = this.#abort
    const ready = () => this.pump()
    this.hand = new Hand(session, settings, signal, ready, (done) => this.#settled(done))
    this.breaker = new Breaker(settings, signal, ready)
    const { step, timeout, clock } = settings
    if (timeout !== undefined && 'each' in step) this.#deadlines = new Deadlines(signal, timeout, clock, this.#late)
    onAbort(session.lost, () => this.#onLost())
  }

  /** Whatever the session must renew its right to. */
  get deliveries(): readonly D[] {
    return [...this.hand.waiting, ...this.#calls.flatMap((call) => (call.busy ? call.run : []))]
  }

  /** Could do more if there were more; or needs others, to see whether it is one message that fails or all of them. */
  get hungry(): boolean {
    return this.breaker.paused || (this.hand.lanes.ready === 0 && this.inFlight < this.#window.size)
  }

  /** What a take brought, which may be nothing. Returns whether any of it may go out. */
  accept(deliveries: readonly D[]): boolean {
    if (this.#ended) return false
    const accepted = this.hand.endTake(deliveries)
    this.pump()
    return accepted > 0
  }

  /** Sends out whatever may go out now. */
  pump(): void {
    // A handler that answers at once comes back here from within: the loop below goes on for it.
    if (this.#pumping) return
    this.#pumping = true
    while (this.#mayDispatch()) {
      const suspect = !this.#mayGoMarked() && this.#window.isSuspect(this.hand.lanes.peek()!.message.id)
      if (suspect && (this.#chargedBefore() || this.#letsOthersGo())) continue
      if (suspect && this.inFlight > 0) break
      this.#dispatch(suspect || this.#window.size === 1)
    }
    this.#pumping = false
    this.hand.handled.flush()
    if (this.inFlight === 0) this.#settings.changes.notify()
  }

  /** The session before was lost with the next one alone in it, and others had arrived: it is charged now, and not tried. */
  #chargedBefore(): boolean {
    const { lanes } = this.hand
    if (!this.#window.isOwed(lanes.peek()!.message.id)) return false
    const delivery = lanes.take()
    const error = new WaybillError(
      'SESSION_LOST',
      'the session was lost while nothing but this message was being handled',
    )
    this.#tellSuspected(delivery, error)
    this.hand.fail([delivery], { kind: 'failed', error }, 0)
    return true
  }

  /** The next one failed alone, perhaps with a session that was lost: others are to show first whether it is all of them. */
  #letsOthersGo(): boolean {
    const { lanes } = this.hand
    if (!this.#window.isUntried(lanes.peek()!.message.id)) return false
    if (!lanes.someReady(({ message }) => !this.#window.isSuspect(message.id))) return false
    lanes.putLast(lanes.take())
    return true
  }

  /** The next of the lanes is not a marked one: those have a place of their own. */
  #sortOut(): void {
    const { lanes, marked } = this.hand
    for (let next = lanes.peek(); next !== undefined && this.#window.isMarked(next.message.id); next = lanes.peek()) {
      marked.push(lanes.take())
    }
    // One of them will do for a probe. The others leave, so that some who are not marked can come in.
    if (this.#window.size > 1 || !this.hand.full) return
    for (const one of marked.splice(1))
      this.#leaves([one], new Unavailable('it failed before, and now nothing arrives'), 0)
  }

  /** A marked one must make room, and cannot be charged. It waits as long as a pause may be: others are to come in. */
  #leaves(run: readonly D[], error: unknown, began: number): void {
    const after = this.#settings.retry.outage(LONGEST)
    this.hand.fail(run, { kind: 'failed', error, charged: false, after }, began)
  }

  /** A marked one failed again, and nobody was out beside it. */
  #failedAgain(run: readonly D[], error: unknown, began: number): void {
    if (!this.#window.failedAgain(run[0]!.message.id)) {
      this.#leaves(run, error, began)
      return
    }
    this.#tellSuspected(run[0]!, error)
    this.hand.fail(run, { kind: 'failed', error }, began)
  }

  /** While it is open whether anybody can arrive, others are the better probes. */
  #mayGoMarked(): boolean {
    const { marked, lanes } = this.hand
    if (marked.length === 0 || this.#markedOut >= this.#window.markedAtOnce) return false
    if (lanes.ready === 0 && this.inFlight === 0) return true
    return this.#window.size > 1 && this.#window.isProven(marked[0]!.message.id)
  }

  #mayDispatch(): boolean {
    if (this.#window.doubtful) this.#sortOut()
    if (this.hand.lanes.ready === 0 && !this.#mayGoMarked()) return false
    // What those that are out will tell decides who may go.
    if (this.inFlight >= this.#window.size || this.hand.doubts.size > 0) return false
    if (this.#calls.length - this.#idle.length >= this.#settings.concurrency) return false
    return !this.#alone && !this.breaker.paused && this.#maySend()
  }

  #maySend(): boolean {
    return !this.hand.closing && !this.#lost && (this.#session.live === undefined || this.#live())
  }

  #live(): boolean {
    if (isLive(this.#session)) return true
    if (!this.#asking) {
      this.#asking = true
      this.#settings.clock.sleep(ASK_AGAIN, this.#abort.signal).then(() => {
        this.#asking = false
        this.pump()
      })
    }
    return false
  }

  #dispatch(alone: boolean): void {
    const call = this.#idle.pop() ?? this.#newCall()
    this.#fill(call, alone)
    if (this.#window.doubtful) for (const { message } of call.run) this.#window.tries(message.id)
    call.number = this.#window.dispatched++
    call.busy = true
    call.alone = alone
    call.era = this.#window.era
    this.inFlight += call.run.length
    this.#alone = alone
    if (alone && this.#notes) this.#note(call)
    else this.#run(call)
  }

  /** The session wants to know of a message before it goes out alone. */
  get #notes(): boolean {
    return this.#session.cautious === true && this.#session.note !== undefined
  }

  #newCall(): Call<D> {
    const call = new Call<D>(this.#answered, this.#succeeded, this.#failed)
    this.#calls.push(call)
    return call
  }

  #fill(call: Call<D>, alone: boolean): void {
    const { step } = this.#settings
    const { lanes, marked } = this.hand
    const first = this.#mayGoMarked() ? marked.shift() : undefined
    call.marked = first === undefined ? 0 : 1
    this.#markedOut += call.marked
    if ('each' in step) {
      call.run[0] = first ?? lanes.take()
      return
    }
    call.run = [first ?? lanes.take()]
    const size = alone ? 1 : Math.min(step.size, this.#window.size - this.inFlight)
    for (; call.marked > 0 && call.run.length < size && this.#mayGoMarked(); call.marked++, this.#markedOut++) {
      call.run.push(marked.shift()!)
    }
    // One that is marked goes without those of its key: one behind it may be the poison.
    for (let key = call.marked > 0 ? undefined : call.run[0]!.key; call.run.length < size; ) {
      if (this.#window.doubtful) this.#sortOut()
      const waiting = step.ordered && key !== undefined ? lanes.peekWaiting(key) : undefined
      const next = waiting ?? lanes.peek()
      if (next === undefined || this.#window.isSuspect(next.message.id)) break
      if (waiting === undefined) lanes.take()
      else lanes.takeWaiting(key!)
      call.run.push(next)
      key = next.key
    }
  }

  /** A crash must find the note: it is written before the message goes out. */
  async #note(call: Call<D>): Promise<void> {
    try {
      await this.#session.note!(call.run[0]!)
    } catch (error) {
      if (this.#landed(call)) {
        this.#putBack(call.run)
        if (this.#window.failedTogether(call.era)) this.breaker.pause(asError(error))
      }
      this.#next(call)
      return
    }
    if (this.#maySend()) {
      this.#run(call)
      return
    }
    if (this.#landed(call)) this.#putBack(call.run)
    this.#next(call)
  }

  #run(call: Call<D>): void {
    const { step } = this.#settings
    call.began = this.hand.handled.begin()
    if ('each' in step) this.#runOne(call, step.each)
    else this.#runBatch(call, step.batch)
  }

  #runOne(call: Call<D>, each: HandleOne<D>): void {
    let result: unknown
    let promise: Promise<unknown> | undefined
    const shift = this.#deadlines?.shift()
    try {
      result = each(call.run[0]!, shift === undefined ? this.#abort.signal : shift.signal)
      promise = promiseOf(result)
    } catch (error) {
      this.#failed(call, error)
      return
    }
    if (promise === undefined) {
      this.#answered(call, result)
      return
    }
    if (shift !== undefined) {
      call.shift = shift
      this.#deadlines!.begin(shift, call)
    }
    promise.then(call.answered, call.failed)
  }

  /** It has come back; its outputs take the publisher's time. */
  #inTime(call: Call<D>): void {
    if (call.shift === undefined) return
    this.#deadlines!.end(call.shift, call)
    call.shift = undefined
  }

  /** Its time was up just before. */
  #cameLate(call: Call<D>): boolean {
    if (call.shift?.over !== true) return false
    this.#deadlines!.end(call.shift, call)
    this.#late(call, this.#settings.timeout!)
    return true
  }

  /**
   * A handler took too long: its message has failed, and its place is free. The handler may go on in the background, so a
   * transaction inside looks at its signal before it commits. Nobody waits for it, and nobody hears its late answer.
   */
  readonly #late = (call: Call<D>, ms: number): void => {
    call.shift = undefined
    this.#calls.splice(this.#calls.indexOf(call), 1)
    const error = tooLong(`handling ${call.run[0]!.message.type}`, ms)
    if (this.#landed(call)) this.#judge(call, [outcomeOf(error, this.#settings.retry.classify)])
    call.abandoned = true
    this.pump()
  }

  readonly #answered = (call: Call<D>, result: unknown): void => {
    if (call.abandoned || this.#cameLate(call)) return
    this.#inTime(call)
    const { after } = this.#settings.step as { after?: (result: unknown) => unknown }
    if (result === undefined || after === undefined) {
      this.#succeeded(call)
      return
    }
    let more: Promise<unknown> | undefined
    try {
      more = promiseOf(after(result))
    } catch (error) {
      this.#failed(call, error)
      return
    }
    if (more === undefined) this.#succeeded(call)
    else more.then(call.succeeded, call.failed)
  }

  async #runBatch(call: Call<D>, batch: HandleMany<D>): Promise<void> {
    const { run } = call
    let failures: readonly Outcome[] | undefined
    try {
      failures = failuresAmong(await this.#timed(run, batch), run.length)
    } catch (thrown) {
      const error = asError(thrown)
      failures = run.map(() => ({ kind: 'down', error }))
    }
    if (failures === undefined) this.#succeeded(call)
    else this.#unsuccessful(call, failures)
  }

  /** A batch that takes too long is `down`: whether it arrived is unknown, and nobody is charged. */
  #timed(run: readonly D[], batch: HandleMany<D>): ReturnType<HandleMany<D>> {
    const { timeout, clock } = this.#settings
    const { signal } = this.#abort
    if (timeout === undefined) return batch(run, signal)
    return timedCall(`publishing ${run.length} messages`, timeout, clock, signal, (inner) => batch(run, inner))
  }

  readonly #succeeded = (call: Call<D>): void => {
    if (this.#landed(call)) {
      const { run } = call
      this.breaker.arrived(run.length, call.era, call.number)
      if (this.#window.suspects > 0) for (const { message } of run) this.#window.acquit(message.id)
      this.hand.done(run, call.began)
      if (call.marked > 0) this.#window.cleared()
      if (this.hand.doubts.size > 0) this.#weigh(true)
    }
    this.#next(call)
  }

  readonly #failed = (call: Call<D>, error: unknown): void => {
    // One that was told to give up, and says that it has waited for what is not its message's fault, knows better.
    if (call.abandoned || (call.shift?.over && !blameless(asError(error)) && this.#cameLate(call))) return
    this.#inTime(call)
    this.#unsuccessful(call, [outcomeOf(error, this.#settings.retry.classify)])
  }

  #unsuccessful(call: Call<D>, outcomes: readonly Outcome[]): void {
    if (this.#landed(call)) this.#judge(call, outcomes)
    this.#next(call)
  }

  #judge(call: Call<D>, outcomes: readonly Outcome[]): void {
    const { run, began } = call
    const arrived = outcomes.filter(({ kind }) => kind === 'ok').length
    if (arrived > 0) this.breaker.arrived(arrived, call.era, call.number)
    run.forEach(({ message }, i) => {
      if (outcomes[i]!.kind === 'down') return
      this.#window.acquit(message.id)
      if (i < call.marked) this.#window.cleared()
    })
    const down = this.hand.closing ? undefined : downIn(outcomes)
    if (down !== undefined && call.alone) {
      this.#fellAlone(run[0]!, down.error, began)
      return
    }
    const again = this.hand.judge(run, outcomes, began)
    if (down !== undefined) this.#fell(call, down.error, again)
    if (this.hand.doubts.size > 0) this.#weigh(arrived > 0)
  }

  /** Not alone. Was it the destination, or these? Whoever is out beside them will tell. */
  #fell(call: Call<D>, error: unknown, failed: readonly D[]): void {
    const { era, began } = call
    if (failed.length === 0 || era !== this.#window.era) {
      this.#putBack(failed)
      return
    }
    const doubt = { failed, error, era, began, before: this.#window.dispatched }
    this.hand.doubts.add(doubt)
    if (this.inFlight === 0) return
    this.#settings.clock.sleep(IN_DOUBT, this.#abort.signal).then(() => {
      if (!this.hand.doubts.has(doubt)) return
      this.#fellTogether()
      this.pump()
    })
  }

  /** A call has landed, and some failed before. */
  #weigh(arrived: boolean): void {
    if (arrived) {
      const doubts = this.hand.doubts.clear()
      const known = doubts.every((doubt) => this.#allMarked(doubt))
      for (const doubt of doubts) this.#fellBeside(doubt, known)
      return
    }
    let oldest = Number.POSITIVE_INFINITY
    for (const { busy, number } of this.#calls) if (busy && number < oldest) oldest = number
    if (this.hand.doubts.over(oldest)) this.#fellTogether()
  }

  /**
   * Each failed by itself: another was out beside them, and arrived. `known`: all that failed now had failed so before. With
   * a new one among them nobody is charged: it may have taken the others with it.
   */
  #fellBeside({ failed, error, began }: Doubt<D>, known: boolean): void {
    for (const [first, ...behind] of runsOf(failed)) {
      const { id } = first.message
      if (known && this.#window.failedBeside(id)) {
        this.#tellSuspected(first, error)
        this.hand.fail([first, ...behind], { kind: 'failed', error }, began)
      } else {
        if (!known) this.#window.mark(id)
        this.#keepMarked(first, behind)
      }
    }
  }

  #allMarked({ failed }: Doubt<D>): boolean {
    for (const [{ message }] of runsOf(failed)) if (!this.#window.isMarked(message.id)) return false
    return true
  }

  /** It goes out again when it is its turn. */
  #keepMarked(first: D, behind: readonly D[]): void {
    if (first.key !== undefined) this.hand.lanes.putWaiting(first.key, behind)
    this.hand.marked.push(first)
  }

  /** Whether anything is to be decided: not what was given back already, nor what a lost session had taken. */
  #landed(call: Call<D>): boolean {
    if (call.abandoned) return false
    call.busy = false
    this.inFlight -= call.run.length
    if (call.alone) this.#alone = false
    this.#markedOut -= call.marked
    if (!this.#lost) return true
    for (const delivery of call.run) this.hand.forget(delivery)
    return false
  }

  #next(call: Call<D>): void {
    if (call.abandoned) return
    this.#idle.push(call)
    this.pump()
  }

  /** It failed although nothing else was in flight; see Window. */
  #fellAlone(delivery: D, error: unknown, began: number): void {
    if (this.#window.isMarked(delivery.message.id)) {
      this.#failedAgain([delivery], error, began)
      return
    }
    if (this.#window.failedAlone(delivery.message.id)) {
      this.#tellSuspected(delivery, error)
      this.hand.fail([delivery], { kind: 'failed', error }, began)
      return
    }
    this.hand.postpone(delivery, this.breaker.pause(error), error, this.#window.alone)
  }

  /** It is charged: it failed where others arrived. */
  #tellSuspected(delivery: D, error: unknown): void {
    const { type, id, tenant } = delivery.message
    const about = { type, id, tenant, topic: topicOfDelivery(delivery), attempt: delivery.attempts + 1 }
    telemetry['message.suspected'].publish({ flow: this.#settings.flow, error, ...about })
  }

  /** All that are in doubt: nobody who was out beside them arrived. */
  #fellTogether(): void {
    const doubts = this.hand.doubts.clear()
    const known = doubts.every((doubt) => this.#allMarked(doubt))
    const innocent: D[] = []
    for (const { failed, error, began } of doubts) {
      for (const [first, ...behind] of runsOf(failed)) {
        if (this.hand.closing || !this.#window.isMarked(first.message.id)) innocent.push(first, ...behind)
        else if (known) this.#failedAgain([first, ...behind], error, began)
        else this.#keepMarked(first, behind)
      }
    }
    if (innocent.length === 0) return
    this.#putBack(innocent)
    const [{ era, error }] = doubts as [Doubt<D>]
    if (this.#window.failedTogether(era)) this.breaker.pause(error)
  }

  #putBack(run: readonly D[]): void {
    if (this.hand.closing) this.hand.release(run)
    else this.hand.lanes.putBack(run)
  }

  #settled(done: boolean): void {
    if (done) this.#window.widen()
    this.pump()
    this.#settings.changes.notify()
  }

  #onLost(): void {
    this.#lost = true
    if (this.#ended) return // some sources say so for what they were told to close
    const { reason } = this.#session.lost
    telemetry['flow.lost'].publish({ flow: this.#settings.flow, inHand: this.hand.count, reason: asError(reason) })
    const alone = this.#alone ? this.#calls.find((call) => call.busy) : undefined
    const id = alone?.run[0]?.message.id
    // Where it was noted, the source charges it when it is opened again.
    if (id !== undefined && this.#notes) this.#window.failedAlone(id)
    else if (id !== undefined) this.#window.lostAlone(id)
    else if (this.inFlight > 0) this.#window.failedTogether(this.#window.era)
    this.abort(reason)
  }

  /** No more goes out; what has not is given back. */
  close(): void {
    this.hand.closing = true
    this.hand.giveBack()
  }

  /** Tells what is in flight to give up. */
  abort(reason: unknown): void {
    this.#abort.abort(reason)
    this.#settings.changes.notify()
  }

  /** Gives back what is still in flight although it was told to give up; its late outcome is ignored. */
  abandon(): void {
    for (const call of this.#calls) {
      if (!call.busy) continue
      call.abandoned = true
      call.busy = false
      this.inFlight -= call.run.length
      this.hand.release(call.run)
    }
  }

  /** Nothing goes out for now: no timer is left that would keep a process from ending. */
  quiet(): void {
    this.#deadlines?.quiet()
  }

  /** The session is about to be closed: nothing more is told, and what a late take brings is no longer ours. */
  end(): void {
    this.#ended = true
    this.hand.end()
  }
}

/** Those of one key that stand together, and each without a key on its own. */
function* runsOf<D extends Delivery<Message>>(deliveries: readonly D[]): Generator<[D, ...D[]]> {
  for (let from = 0, to = 0; from < deliveries.length; from = to) {
    const first = deliveries[from]!
    for (to = from + 1; first.key !== undefined && deliveries[to]?.key === first.key; ) to++
    yield [first, ...deliveries.slice(from + 1, to)]
  }
}

function isLive(session: Pick<Session, 'live'>): boolean {
  try {
    return session.live!()
  } catch {
    return false
  }
}
