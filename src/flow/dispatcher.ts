import {
  asError,
  type Message,
  type Notifier,
  onAbort,
  telemetry,
  Unavailable,
  WaybillError,
  withoutData,
} from '../core/index.ts'
import { Blame } from './blame.ts'
import { type Call, type CallSettings, Calls } from './calls.ts'
import type { Outcome } from './publisher.ts'
import type { Delivery, Session } from './source.ts'
import { Unsettled, type UnsettledSettings } from './unsettled.ts'
import { Breaker, type BreakerSettings, type Window } from './window.ts'

export interface DispatcherSettings<D extends Delivery<Message>>
  extends CallSettings<D>,
    UnsettledSettings,
    BreakerSettings {
  /** How many calls of the step may run at once. */
  readonly concurrency: number
  /** Notified whenever there is more room, or nothing left. */
  readonly changes: Notifier
}

/** How soon a session that was not live is asked again, unless something else comes first. */
const ASK_AGAIN = 250

/**
 * Within one session, decides which messages go out now. It never waits: deliveries that come in, calls that return and
 * time that passes drive it.
 *
 * 1. `accept` puts what was taken into the queue;
 * 2. `dispatch` fills calls from it, as many as window, concurrency and session allow;
 * 3. a call that returns is judged (Blame) and settled (Unsettled), which makes room for the next.
 */
export class Dispatcher<D extends Delivery<Message>> {
  readonly unsettled: Unsettled<D>
  readonly breaker: Breaker
  readonly #settings: DispatcherSettings<D>
  readonly #window: Window
  readonly #session: Session<D>
  readonly #calls: Calls<D>
  readonly #blame: Blame<D>
  /** Why the last renewal of its right failed. */
  notRenewed: string | undefined
  #dispatching = false
  #lost = false
  #ended = false
  #asking = false

  constructor(session: Session<D>, settings: DispatcherSettings<D>) {
    this.#session = session
    this.#settings = settings
    this.#window = settings.window
    const ready = () => this.dispatch()
    this.#calls = new Calls(settings, {
      returned: (call, outcomes) => this.#returned(call, outcomes),
      free: ready,
    })
    const { signal } = this.#calls
    this.unsettled = new Unsettled(session, settings, signal, ready, (done) => this.#settled(done))
    this.breaker = new Breaker(settings, signal, ready)
    this.#blame = new Blame(settings, this.unsettled, this.#calls, this.breaker, ready)
    onAbort(session.lost, () => this.#onLost())
  }

  /** How many messages are in flight. */
  get inFlight(): number {
    return this.#calls.inFlight
  }

  /** Everything the session has to renew its right to. */
  get deliveries(): readonly D[] {
    return [...this.unsettled.waiting, ...this.#calls.deliveries]
  }

  /** It could do more if there were more, or needs others to see whether one message fails or all do. */
  get hungry(): boolean {
    return this.breaker.paused || (this.unsettled.queue.ready === 0 && this.inFlight < this.#window.size)
  }

  /** What a take brought, which may be nothing. Returns whether any of it may go out. */
  accept(deliveries: readonly D[]): boolean {
    if (this.#ended) return false
    const accepted = this.unsettled.endTake(deliveries)
    this.dispatch()
    return accepted > 0
  }

  /** Sends out whatever may go out now. */
  dispatch(): void {
    // A handler that returns at once comes back here from within: the loop below goes on for it.
    if (this.#dispatching) return
    this.#dispatching = true
    while (this.#mayDispatch()) {
      const suspect = !this.#mayGoMarked() && this.#window.isSuspect(this.unsettled.queue.peek()!.message.id)
      if (suspect && (this.#chargedBefore() || this.#letsOthersGo())) continue
      if (suspect && this.inFlight > 0) break
      this.#send(suspect || this.#window.size === 1)
    }
    this.#dispatching = false
    this.unsettled.handled.flush()
    if (this.inFlight === 0) this.#settings.changes.notify()
  }

  #mayDispatch(): boolean {
    if (this.#window.doubtful) this.#sortOut()
    if (this.unsettled.queue.ready === 0 && !this.#mayGoMarked()) return false
    if (this.inFlight >= this.#window.size || this.#blame.undecided) return false
    if (this.#calls.count >= this.#settings.concurrency) return false
    return !this.#calls.alone && !this.breaker.paused && this.#maySend()
  }

  #maySend(): boolean {
    return !this.unsettled.closing && !this.#lost && (this.#session.live === undefined || this.#isLive())
  }

  #isLive(): boolean {
    const { condition } = this.#settings
    if (isLive(this.#session)) {
      condition.clear('right')
      return true
    }
    if (!this.#asking) {
      this.#asking = true
      const why = this.notRenewed === undefined ? '' : `: ${this.notRenewed}`
      condition.hinder('right', 'failing', `what it has taken may be another's by now: not renewed in time${why}`)
      this.#settings.clock.sleep(ASK_AGAIN, this.#calls.signal).then(() => {
        this.#asking = false
        this.dispatch()
      })
    }
    return false
  }

  /** The last session was lost with the next message alone in it, and others had arrived: it is charged now, not tried. */
  #chargedBefore(): boolean {
    const { queue } = this.unsettled
    if (!this.#window.isOwed(queue.peek()!.message.id)) return false
    const text = 'the session was lost while only this message was being handled'
    this.#blame.charge(queue.take(), [], new WaybillError('SESSION_LOST', text), 0)
    return true
  }

  /** The next message failed alone, perhaps with a session that was lost: others are to show first whether all fail. */
  #letsOthersGo(): boolean {
    const { queue } = this.unsettled
    if (!this.#window.isUntried(queue.peek()!.message.id)) return false
    if (!queue.someReady(({ message }) => !this.#window.isSuspect(message.id))) return false
    queue.putLast(queue.take())
    return true
  }

  /** Moves marked ones from the front of the queue to where they wait by themselves. */
  #sortOut(): void {
    const { queue, marked } = this.unsettled
    for (let next = queue.peek(); next !== undefined && this.#window.isMarked(next.message.id); next = queue.peek()) {
      marked.push(queue.take())
    }
    if (this.#window.size > 1 || !this.unsettled.full) return
    // One of them will do for a probe. The others leave, so that some that are not marked can come in.
    const error = new Unavailable('it failed before, and now nothing arrives')
    for (const one of marked.splice(1)) this.#blame.sendAway([one], error, 0)
  }

  /** While it is unknown whether anything can arrive, others are the better probes. */
  #mayGoMarked(): boolean {
    const { marked, queue } = this.unsettled
    if (marked.length === 0 || this.#calls.markedInFlight >= this.#window.markedAtOnce) return false
    if (queue.ready === 0 && this.inFlight === 0) return true
    return this.#window.size > 1 && this.#window.isProven(marked[0]!.message.id)
  }

  #send(alone: boolean): void {
    const call = this.#calls.next()
    this.#fill(call, alone)
    if (this.#window.doubtful) for (const { message } of call.run) this.#window.tries(message.id)
    call.number = this.#window.dispatched++
    call.generation = this.#window.generation
    this.#calls.begin(call, alone)
    if (alone && this.#recordsProbes) this.#recordThenRun(call)
    else this.#calls.run(call, this.unsettled.handled.begin())
  }

  #fill(call: Call<D>, alone: boolean): void {
    const { step } = this.#settings
    const { queue, marked } = this.unsettled
    call.marked = this.#mayGoMarked() ? 1 : 0
    const first = call.marked > 0 ? marked.shift()! : queue.take()
    if ('each' in step) {
      call.run[0] = first
      return
    }
    call.run = [first]
    const size = alone ? 1 : Math.min(step.size, this.#window.size - this.inFlight)
    if (call.marked > 0) this.#fillMarked(call, size)
    // A marked one goes without others of its key: one behind it may be the poison.
    for (let key = call.marked > 0 ? undefined : first.key; call.run.length < size; ) {
      if (this.#window.doubtful) this.#sortOut()
      const waiting = step.ordered && key !== undefined ? queue.peekWaiting(key) : undefined
      const next = waiting ?? queue.peek()
      if (next === undefined || this.#window.isSuspect(next.message.id)) break
      if (waiting === undefined) queue.take()
      else queue.takeWaiting(key!)
      call.run.push(next)
      key = next.key
    }
  }

  #fillMarked(call: Call<D>, size: number): void {
    const { marked } = this.unsettled
    const room = this.#window.markedAtOnce - this.#calls.markedInFlight
    while (call.run.length < Math.min(size, room) && marked.length > 0 && this.#mayGoMarked()) {
      call.run.push(marked.shift()!)
      call.marked++
    }
  }

  /** The session wants to record a message before that goes out alone. */
  get #recordsProbes(): boolean {
    return this.#session.afterCrash === true && this.#session.recordProbe !== undefined
  }

  /** A crash has to find the record, so it is written before the message goes out. */
  async #recordThenRun(call: Call<D>): Promise<void> {
    let failure: { error: unknown } | undefined
    try {
      await this.#session.recordProbe!(call.run[0]!)
    } catch (error) {
      failure = { error: asError(error) }
    }
    if (failure === undefined && this.#maySend()) {
      this.#calls.run(call, this.unsettled.handled.begin())
      return
    }
    const { generation } = call
    const run = [...call.run]
    if (!this.#calls.cancel(call)) return
    if (this.#lost) this.#forget(run)
    else {
      this.unsettled.putBack(run)
      if (failure !== undefined && this.#window.failedTogether(generation)) this.breaker.pause(failure.error)
    }
    this.dispatch()
  }

  /** The only place where a call comes back. */
  #returned(call: Call<D>, outcomes: readonly Outcome[] | undefined): void {
    if (this.#lost) this.#forget(call.run)
    else if (outcomes === undefined) this.#blame.succeeded(call)
    else this.#blame.failed(call, withoutPayloads(call.run, outcomes))
  }

  /** Nothing is decided about what a lost session had taken. */
  #forget(run: readonly D[]): void {
    for (const delivery of run) this.unsettled.forget(delivery)
  }

  #settled(done: boolean): void {
    if (done) this.#window.widen()
    this.dispatch()
    this.#settings.changes.notify()
  }

  #onLost(): void {
    this.#lost = true
    if (this.#ended) return // some sources say so when they are closed
    const { reason } = this.#session.lost
    const { flow } = this.#settings
    telemetry['flow.lost'].publish({ flow, unsettled: this.unsettled.count, reason: asError(reason) })
    const id = this.#calls.alone ? this.#calls.deliveries[0]?.message.id : undefined
    // Where it was recorded, the source charges it when it is opened again.
    if (id !== undefined && this.#recordsProbes) this.#window.failedAlone(id)
    else if (id !== undefined) this.#window.lostAlone(id)
    else if (this.inFlight > 0) this.#window.failedTogether(this.#window.generation)
    this.abort(reason)
  }

  /** Nothing more goes out, and what is not in flight is released. */
  close(): void {
    this.unsettled.closing = true
    this.unsettled.releaseWaiting()
  }

  /** Asks the calls in flight to stop. */
  abort(reason: unknown): void {
    this.#calls.abort(reason)
    this.#settings.changes.notify()
  }

  /** Releases what is still in flight although it was asked to stop. Its late outcome is ignored. */
  abandon(): void {
    this.unsettled.release(this.#calls.abandon())
  }

  /** Nothing goes out for now: no timer is left that would keep a process from ending. */
  quiet(): void {
    this.#calls.quiet()
  }

  /** The session is about to be closed: nothing more is settled, and what a late take brings is no longer ours. */
  end(): void {
    this.#ended = true
    this.unsettled.end()
  }
}

function isLive(session: Pick<Session, 'live'>): boolean {
  try {
    return session.live!()
  } catch {
    return false
  }
}

/** What failed, without anything of the messages in its text: from here on it is logged, stored and traced. */
function withoutPayloads(run: readonly Delivery<Message>[], outcomes: readonly Outcome[]): readonly Outcome[] {
  const first = outcomes[0]!
  // A batch that failed as a whole has one error, which may quote any of it.
  if (
    first.kind !== 'ok' &&
    run.length > 1 &&
    outcomes.every((one) => one.kind !== 'ok' && one.error === first.error)
  ) {
    const error = withoutData(first.error, { data: run.map(({ message }) => message.data) })
    return outcomes.map((outcome) => ({ ...outcome, error }) as Outcome)
  }
  return outcomes.map((outcome, i) => {
    return outcome.kind === 'ok' ? outcome : { ...outcome, error: withoutData(outcome.error, run[i]!.message) }
  })
}
