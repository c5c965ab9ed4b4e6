import {
  asError,
  Changes,
  describe,
  errorSummary,
  type Message,
  onAbort,
  pauseAfter,
  telemetry,
  untilAborted,
  WaybillError,
  warnOnce,
  withDeadline,
} from '../core/index.ts'
import { isMessage } from '../core/message.ts'
import { type FlowLimits, type FlowOptions, flowLimits, type Step, type Tally } from './flow-options.ts'
import { Pump } from './pump.ts'
import type { Delivery, Session, Source, SourceFeatures } from './source.ts'
import type { Status } from './status.ts'
import { Task } from './task.ts'
import { Window } from './window.ts'
import { type Phase, Worker } from './worker.ts'

/** How long a handler that was told to give up may take to do so before its message is given back regardless. */
const ABORT_GRACE = 1000

/** While crowded keys are left out, others that may have come are looked for this often. Milliseconds. */
const LOOK_PAST_CROWDED = 50

interface Open<D extends Delivery<Message>> {
  readonly session: Session<D>
  readonly pump: Pump<D>
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
  readonly #window: Window
  readonly #changes = new Changes()
  #open: Open<D> | undefined

  constructor(options: FlowOptions<D>) {
    super(options?.clock)
    this.#limits = flowLimits(options)
    this.name = options.name
    this.phase = options.phase ?? 'consumers'
    this.#from = options.from
    this.#features = options.from.features ?? {}
    this.#step = options.step
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
    const { session, pump } = open
    const before = { ...pump.hand.tally }
    const renewal = await this.#renewal(session, pump)
    try {
      pump.breaker.probe()
      pump.hand.beginTake()
      let taken: readonly D[] = []
      try {
        taken = this.#checked(
          await session.take({ count: this.#limits.count, bytes: this.#limits.bytes }, session.lost),
        )
      } finally {
        pump.accept(taken)
      }
      await this.#changes.until(
        () => pump.hand.count === 0 || session.lost.aborted || (pump.breaker.paused && pump.inFlight === 0),
      )
      pump.hand.giveBack()
      await pump.hand.flushed()
    } finally {
      pump.quiet()
      await this.#bounded(renewal?.stop(), ABORT_GRACE)
    }
    if (session.lost.aborted && this.#open === open) {
      this.#open = undefined
      await this.#drain(session, pump)
    }
    return difference(pump.hand.tally, before)
  }

  override status(): Status {
    const unsettled = this.#open?.pump.hand.count
    return unsettled === undefined ? super.status() : { ...super.status(), unsettled }
  }

  /** Gives back the session that `runOnce` has left open for the next round. */
  async rest(): Promise<void> {
    if (!this.started) await this.ended()
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
        const reason = this.#from.waiting?.()?.reason ?? 'another may read at present'
        this.condition.hinder('open', 'waiting', reason, this.#limits.poll.base)
        await this.clock.sleep(this.#limits.poll.base, signal)
        continue
      }
      const { session, pump } = this.#open
      await this.#work(session, pump, signal)
      this.#open = undefined
      if (signal.aborted) return
      // These were of the session.
      for (const cause of ['take', 'breaker', 'settle', 'aside']) this.condition.clear(cause)
      // One that is lost again and again without having moved anything must not be opened in a hot loop.
      failures = pump.hand.tally.done > 0 ? 1 : failures + 1
      const retryIn = this.#limits.retry.outage(failures)
      this.condition.hinder('open', 'failing', errorSummary(session.lost.reason), retryIn)
      await this.clock.sleep(retryIn, signal)
    }
  }

  protected override async ended(): Promise<void> {
    const open = this.#open
    this.#open = undefined
    if (open !== undefined) await this.#drain(open.session, open.pump)
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
    if (session.cautious) this.#window.narrow()
    const pump = new Pump(session, {
      flow: this.name,
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
    return { session, pump }
  }

  async #work(session: Session<D>, pump: Pump<D>, signal: AbortSignal): Promise<void> {
    const over = AbortSignal.any([signal, session.lost])
    // At once: nothing goes out after a stop.
    const forget = onAbort(signal, () => pump.close())
    const renewal = await this.#renewal(session, pump)
    await this.#answered(this.#takeAll(session, pump, over), over)
    // The flow outlives its sessions: each that was lost would stay in memory with it.
    forget()
    await this.#drain(session, pump)
    await this.#bounded(renewal?.stop(), ABORT_GRACE)
  }

  async #renewal(session: Session<D>, pump: Pump<D>): Promise<Task | undefined> {
    const { extendEvery } = session
    if (session.extend === undefined || extendEvery === undefined) return undefined
    const renewal = new Task({
      name: `${this.name}: extend`,
      every: extendEvery,
      run: async (): Promise<unknown> => session.extend!(pump.deliveries),
      // The right runs out while we wait: a failed renewal is tried again no later than the next would have been.
      backoff: { min: extendEvery, max: extendEvery, jitter: 0 },
      clock: this.clock,
    })
    return renewal.start()
  }

  async #takeAll(session: Session<D>, pump: Pump<D>, over: AbortSignal): Promise<void> {
    const { hand } = pump
    let ask = Math.min(this.#limits.take, this.#limits.most)
    let idle = this.#limits.poll.base
    const room = (): boolean => {
      if (hand.full || hand.refusing) return false
      const free = this.#limits.count - hand.count
      // Not for one or two at a time while there is work: a take costs a round trip.
      return free >= Math.min(ask, this.#limits.count >> 1) || pump.hungry
    }
    let unproven = true
    for (let failures = 0; !over.aborted; ) {
      if (!room()) await this.#changes.until(room, over)
      if (over.aborted) return
      const count = Math.min(ask, this.#limits.count - hand.count)
      let taken: readonly D[] = []
      let useful = false
      let without = false
      const began = this.clock.monotonic()
      try {
        hand.beginTake()
        try {
          const next = Math.min(ask * 2, this.#limits.most)
          const demand = { count, bytes: this.#limits.bytes - hand.bytes, next }
          const crowded = this.#features.leavesOut ? hand.lanes.crowded : undefined
          without = crowded !== undefined
          taken = this.#checked(
            await session.take(crowded === undefined ? demand : { ...demand, without: new Set(crowded) }, over),
          )
          if (unproven) this.#proven(over)
          unproven = false
        } finally {
          if (over.aborted) pump.close()
          useful = pump.accept(taken)
        }
        if (taken.length === 0 && without) await this.#untilUncrowded(pump, this.clock.monotonic() - began, over)
        else if (taken.length === 0 && !over.aborted) await (session.wait?.(idle, over) ?? this.clock.sleep(idle, over))
        // Others of a key that stands still, given back at once: the source would give them again, and again.
        else if (!useful && hand.hasAside) await this.clock.sleep(idle, over)
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
        if (idle === this.#limits.poll.max && hand.count === 0) pump.breaker.nothingToProve()
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
   * passes over all of it: so not before their lanes have emptied, or others may have come.
   */
  async #untilUncrowded({ hand }: Pump<D>, took: number, over: AbortSignal): Promise<void> {
    const pause = Math.min(this.#limits.poll.base, Math.max(LOOK_PAST_CROWDED, 4 * took))
    await this.#within(pause, () => hand.lanes.crowded === undefined, over)
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
      const text = `source ${this.#from.name} gave ${describe(taken)} in place of a list of deliveries`
      throw new WaybillError('BAD_SOURCE', text)
    }
    if (taken.every(isDelivery)) return taken
    warnOnce(`flow ${this.name}`, `source ${this.#from.name} gave what is no delivery; it is passed over`)
    return taken.filter(isDelivery)
  }

  /**
   * What has not gone out is given back at once; what is in flight may finish within the grace period, is then told to
   * give up, and then given back. A stop ends even where a server has stopped answering: what the source could not be
   * told, it will find out.
   */
  async #drain(session: Session<D>, pump: Pump<D>): Promise<void> {
    pump.close()
    if (pump.inFlight > 0) await this.#within(this.#limits.grace, () => pump.inFlight === 0 || session.lost.aborted)
    pump.abort(new DOMException(`${this.name} is stopping`, 'AbortError'))
    if (pump.inFlight > 0) await this.#within(ABORT_GRACE, () => pump.inFlight === 0)
    pump.abandon()
    const began = this.clock.monotonic()
    await this.#bounded(pump.hand.flushed(), this.#limits.grace)
    pump.hand.lastTry()
    await this.#bounded(pump.hand.flushed(), ABORT_GRACE)
    pump.end()
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

  /** Waits for `work`; once `signal` aborts not for long. Answers whether it came to its end. */
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
