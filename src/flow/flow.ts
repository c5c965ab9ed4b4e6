import {
  asError,
  describe,
  errorSummary,
  type Message,
  Notifier,
  onAbort,
  pauseAfter,
  telemetry,
  untilAborted,
  WaybillError,
  warnOnce,
  withDeadline,
} from '../core/index.ts'
import { isMessage } from '../core/message.ts'
import { Dispatcher } from './dispatcher.ts'
import {
  type FlowLimits,
  type FlowOptions,
  type FromOutbox,
  flowLimits,
  type Step,
  type Tally,
} from './flow-options.ts'
import type { Delivery, Session, Source, SourceFeatures } from './source.ts'
import type { Status } from './status.ts'
import { Task } from './task.ts'
import { Window } from './window.ts'
import { type Phase, Worker } from './worker.ts'

/** How long a handler that was asked to stop may take to do so before its message is released regardless. */
const ABORT_GRACE = 1000

/** While crowded keys are left out, others that may have come are looked for this often. Milliseconds. */
const LOOK_PAST_CROWDED = 50

interface Open<D extends Delivery<Message>> {
  readonly session: Session<D>
  readonly dispatcher: Dispatcher<D>
}

/**
 * Everything that moves messages is a flow:
 *
 * 1. open a session with the source (and open another, after a pause, when it is lost);
 * 2. take what there is room for; when there is nothing, wait longer and longer, or until the session says so;
 * 3. hand it to the step, one at a time per key, as many as the window allows;
 * 4. settle the outcomes in batches.
 */
export class Flow<D extends Delivery<Message> = Delivery> extends Worker<Tally> {
  readonly name: string
  override readonly phase: Phase
  readonly #from: Source<D>
  readonly #features: SourceFeatures
  readonly #step: Step<D>
  readonly #limits: FlowLimits
  readonly #outbox: FromOutbox | undefined
  readonly #window: Window
  readonly #changes = new Notifier()
  #open: Open<D> | undefined

  constructor(options: FlowOptions<D>) {
    super(options?.clock)
    this.#limits = flowLimits(options)
    this.name = options.name
    this.phase = options.phase ?? 'consumers'
    this.#from = options.from
    this.#features = options.from.features ?? {}
    this.#step = options.step
    this.#outbox = options.outbox
    this.#window = new Window(this.#limits.window)
  }

  /**
   * Takes once, handles all of it, settles, and says how it went. What the destination was down for is given back;
   * what a source cannot give again later is tried until it succeeds or is dead.
   */
  async runOnce(): Promise<Tally> {
    if (this.started)
      throw new WaybillError('ALREADY_STARTED', `${this.name} is started; runOnce() is for when it is not`)
    await this.prepare()
    this.#open ??= await this.#openSession(new AbortController().signal)
    const open = this.#open
    if (open === undefined) return { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
    const { session, dispatcher } = open
    const before = { ...dispatcher.unsettled.tally }
    const renewal = await this.#renewal(session, dispatcher)
    try {
      dispatcher.breaker.probe()
      dispatcher.unsettled.beginTake()
      let taken: readonly D[] = []
      try {
        taken = this.#checked(
          await session.take({ count: this.#limits.count, bytes: this.#limits.bytes }, session.lost),
        )
      } finally {
        dispatcher.accept(taken)
      }
      await this.#changes.until(
        () =>
          dispatcher.unsettled.count === 0 ||
          session.lost.aborted ||
          (dispatcher.breaker.paused && dispatcher.inFlight === 0),
      )
      dispatcher.unsettled.releaseWaiting()
      await dispatcher.unsettled.flushed()
    } finally {
      dispatcher.quiet()
      await this.#bounded(renewal?.stop(), ABORT_GRACE)
    }
    if (session.lost.aborted && this.#open === open) {
      this.#open = undefined
      await this.#drain(session, dispatcher)
    }
    return difference(dispatcher.unsettled.tally, before)
  }

  override status(): Status {
    const unsettled = this.#open?.dispatcher.unsettled.count
    return unsettled === undefined ? super.status() : { ...super.status(), unsettled }
  }

  /** Whether it has the right to settle what it takes, as far as it knows. */
  get holds(): boolean {
    return this.#open !== undefined && !this.#open.session.lost.aborted
  }

  /** Gives back the session that `runOnce` has left open for the next round. */
  async rest(): Promise<void> {
    if (!this.started) await this.ended()
  }

  protected override async launch(signal: AbortSignal): Promise<void> {
    await this.#from.check?.(signal)
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      try {
        this.#open ??= await this.#openSession(signal)
      } catch (error) {
        if (signal.aborted) return
        failures++
        const retryIn = Math.max(this.#limits.retry.outage(failures), pauseAfter(error))
        this.condition.hinder('open', 'failing', errorSummary(error), retryIn)
        telemetry['flow.open_failed'].publish({ flow: this.name, error: asError(error), retryIn })
        await this.clock.sleep(retryIn, signal)
        continue
      }
      if (this.#open === undefined) {
        failures = 0
        const reason = this.#from.waiting?.()?.reason ?? 'another reader has the right to read'
        this.condition.hinder('open', 'waiting', reason, this.#limits.poll.base)
        await this.clock.sleep(this.#limits.poll.base, signal)
        continue
      }
      const { session, dispatcher } = this.#open
      await this.#work(session, dispatcher, signal)
      this.#open = undefined
      if (signal.aborted) return
      // These were of the session.
      for (const cause of ['take', 'breaker', 'settle', 'aside', 'right']) this.condition.clear(cause)
      // One that is lost again and again without having moved anything must not be opened in a hot loop.
      failures = dispatcher.unsettled.tally.done > 0 ? 1 : failures + 1
      const retryIn = this.#limits.retry.outage(failures)
      this.condition.hinder('open', 'failing', errorSummary(session.lost.reason), retryIn)
      await this.clock.sleep(retryIn, signal)
    }
  }

  protected override async ended(): Promise<void> {
    const open = this.#open
    this.#open = undefined
    if (open !== undefined) await this.#drain(open.session, open.dispatcher)
  }

  async #openSession(signal: AbortSignal): Promise<Open<D> | undefined> {
    const opening = this.#from.open(signal)
    if (!(await this.#answered(opening, signal))) {
      opening.then((late) => late?.close()).catch(() => {})
      throw new WaybillError('STOPPED', `${this.name} was stopped while its source was opening`)
    }
    const session = await opening
    if (session === undefined) return undefined
    telemetry['flow.opened'].publish({ flow: this.name })
    if (session.afterCrash) this.#window.narrow()
    const dispatcher = new Dispatcher(session, {
      flow: this.name,
      outbox: this.#outbox,
      step: this.#step,
      timeout: this.#limits.timeout,
      concurrency: this.#limits.concurrency,
      count: this.#limits.count,
      bytes: this.#limits.bytes,
      enough: this.#limits.enough,
      features: this.#features,
      window: this.#window,
      retry: this.#limits.retry,
      clock: this.clock,
      condition: this.condition,
      changes: this.#changes,
    })
    return { session, dispatcher }
  }

  async #work(session: Session<D>, dispatcher: Dispatcher<D>, signal: AbortSignal): Promise<void> {
    const over = AbortSignal.any([signal, session.lost])
    // At once: nothing goes out after a stop.
    const forget = onAbort(signal, () => dispatcher.close())
    const renewal = await this.#renewal(session, dispatcher)
    await this.#answered(this.#takeAll(session, dispatcher, over), over)
    // The flow outlives its sessions: each that was lost would stay in memory with it.
    forget()
    await this.#drain(session, dispatcher)
    await this.#bounded(renewal?.stop(), ABORT_GRACE)
  }

  async #renewal(session: Session<D>, dispatcher: Dispatcher<D>): Promise<Task | undefined> {
    const { extendEvery } = session
    if (session.extend === undefined || extendEvery === undefined) return undefined
    const renewal = new Task<unknown>({
      name: `${this.name}: extend`,
      every: extendEvery,
      run: async () => {
        try {
          await session.extend!(dispatcher.deliveries)
          dispatcher.notRenewed = undefined
        } catch (error) {
          dispatcher.notRenewed = errorSummary(error)
          throw error
        }
      },
      // The right runs out while we wait: a failed renewal is tried again no later than the next would have been.
      backoff: { min: extendEvery, max: extendEvery, jitter: 0 },
      clock: this.clock,
    })
    return renewal.start()
  }

  async #takeAll(session: Session<D>, dispatcher: Dispatcher<D>, over: AbortSignal): Promise<void> {
    const { unsettled } = dispatcher
    let ask = Math.min(this.#limits.take, this.#limits.most)
    let idle = this.#limits.poll.base
    const room = (): boolean => {
      if (unsettled.full || unsettled.refusing) return false
      const free = this.#limits.count - unsettled.count
      // Not for one or two at a time while there is work: a take costs a round trip.
      return free >= Math.min(ask, this.#limits.count >> 1) || dispatcher.hungry
    }
    let unproven = true
    for (let failures = 0; !over.aborted; ) {
      if (!room()) await this.#changes.until(room, over)
      if (over.aborted) return
      const count = Math.min(ask, this.#limits.count - unsettled.count)
      let taken: readonly D[] = []
      let useful = false
      /** When a take that leaves out crowded keys began. */
      let without: number | undefined
      try {
        unsettled.beginTake()
        try {
          const prefetch = Math.min(ask * 2, this.#limits.most)
          const demand = { count, bytes: this.#limits.bytes - unsettled.bytes, prefetch }
          const crowded = this.#features.leavesOut ? unsettled.queue.crowded : undefined
          if (crowded !== undefined) without = this.clock.monotonic()
          taken = this.#checked(
            await session.take(crowded === undefined ? demand : { ...demand, without: new Set(crowded) }, over),
          )
          if (unproven) this.#proven(over)
          unproven = false
        } finally {
          if (over.aborted) dispatcher.close()
          useful = dispatcher.accept(taken)
        }
        if (taken.length === 0 && without !== undefined)
          await this.#untilUncrowded(dispatcher, this.clock.monotonic() - without, over)
        else if (taken.length === 0 && !over.aborted) await (session.wait?.(idle, over) ?? this.clock.sleep(idle, over))
        // Others of a key that stands still, given back at once: the source would give them again, and again.
        else if (!useful && unsettled.hasAside) await this.clock.sleep(idle, over)
        failures = 0
      } catch (error) {
        if (over.aborted) return
        failures++
        const retryIn = this.#limits.retry.outage(failures)
        unproven = true
        this.condition.hinder('take', 'failing', errorSummary(error), retryIn)
        telemetry['flow.take_failed'].publish({ flow: this.name, error: asError(error), retryIn })
        await this.clock.sleep(retryIn, over)
        continue
      }
      if (taken.length === 0) {
        if (idle === this.#limits.poll.max && unsettled.count === 0) dispatcher.breaker.nothingToProve()
        idle = Math.min(idle * 2, this.#limits.poll.max)
        continue
      }
      if (telemetry['flow.taken'].active) telemetry['flow.taken'].publish({ flow: this.name, count: taken.length })
      ask =
        taken.length >= count ? Math.min(ask * 2, this.#limits.most) : Math.min(this.#limits.take, this.#limits.most)
      idle = this.#limits.poll.base
    }
  }

  /**
   * Nothing is there but keys of which enough is here. The source would say at once that there is something, and each take
   * passes over all of it: so not before their queues have emptied, or others may have come.
   */
  async #untilUncrowded({ unsettled }: Dispatcher<D>, took: number, over: AbortSignal): Promise<void> {
    const pause = Math.min(this.#limits.poll.base, Math.max(LOOK_PAST_CROWDED, 4 * took))
    await this.#within(pause, () => unsettled.queue.crowded === undefined, over)
  }

  /** A take succeeded: the source is there, and whatever was wrong with it is over. */
  #proven(over: AbortSignal): void {
    if (over.aborted) return
    this.condition.clear('open')
    this.condition.clear('take')
    this.condition.running()
  }

  /** What a source gave, if it is what a source gives. One that is no delivery costs nobody but itself. */
  #checked(taken: readonly D[]): readonly D[] {
    if (!Array.isArray(taken)) {
      const text = `source ${this.#from.name} returned ${describe(taken)}; it must return a list of deliveries`
      throw new WaybillError('BAD_SOURCE', text)
    }
    if (taken.every(isDelivery)) return taken
    warnOnce(`flow ${this.name}`, `source ${this.#from.name} returned something that is not a delivery; it is skipped`)
    return taken.filter(isDelivery)
  }

  /**
   * What has not gone out is given back at once; what is in flight may finish within the grace period, is then asked to
   * stop, and then given back. A stop ends even where a server has stopped answering: what could not be settled is
   * redelivered.
   */
  async #drain(session: Session<D>, dispatcher: Dispatcher<D>): Promise<void> {
    dispatcher.close()
    if (dispatcher.inFlight > 0)
      await this.#within(this.#limits.grace, () => dispatcher.inFlight === 0 || session.lost.aborted)
    dispatcher.abort(new DOMException(`${this.name} is stopping`, 'AbortError'))
    if (dispatcher.inFlight > 0) await this.#within(ABORT_GRACE, () => dispatcher.inFlight === 0)
    dispatcher.abandon()
    const began = this.clock.monotonic()
    await this.#bounded(dispatcher.unsettled.flushed(), this.#limits.grace)
    dispatcher.unsettled.lastTry()
    await this.#bounded(dispatcher.unsettled.flushed(), ABORT_GRACE)
    dispatcher.end()
    // Of a session that is lost there is nothing to give back, and what it waits for may hang.
    const left = session.lost.aborted ? 0 : this.#limits.grace - (this.clock.monotonic() - began)
    await this.#bounded(this.#close(session), Math.max(ABORT_GRACE, left))
  }

  async #close(session: Session<D>): Promise<void> {
    try {
      await session.close()
    } catch (error) {
      if (session.lost.aborted) return // as was to be expected
      const message = `closing the session failed: ${errorSummary(error)}`
      telemetry.warning.publish({ where: `flow ${this.name}`, message })
    }
  }

  async #bounded(work: Promise<void> | undefined, ms: number): Promise<void> {
    if (work !== undefined) await withDeadline(work, ms, this.clock, () => {})
  }

  /** Waits for `work`; once `signal` aborts not for long. Returns whether it came to its end. */
  async #answered(work: Promise<unknown>, signal: AbortSignal): Promise<boolean> {
    const ending = work.then(() => true)
    const inTime = await untilAborted<boolean>(ending, signal, () => false)
    return inTime || withDeadline(ending, ABORT_GRACE, this.clock, () => false)
  }

  async #within(ms: number, condition: () => boolean, signal?: AbortSignal): Promise<void> {
    const timeout = new AbortController()
    const slept = this.clock.sleep(ms, timeout.signal).then(() => timeout.abort())
    const over = signal === undefined ? timeout.signal : AbortSignal.any([timeout.signal, signal])
    await this.#changes.until(condition, over)
    timeout.abort()
    await slept
  }
}

/** Without the number of attempts one that never succeeds would be tried without end. */
function isDelivery(given: Partial<Delivery> | undefined | null): boolean {
  return isMessage(given?.message) && given!.attempts! >= 0
}

function difference(tally: Tally, before: Tally): Tally {
  const kinds = Object.keys(tally) as (keyof Tally)[]
  return Object.fromEntries(kinds.map((kind) => [kind, tally[kind] - before[kind]])) as unknown as Tally
}
