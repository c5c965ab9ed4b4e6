import {
  type Clock,
  checkOptions,
  type Duration,
  type Message,
  milliseconds,
  type Random,
  systemClock,
  telemetry,
  wholeNumber,
} from '../core/index.ts'
import { Pump, type Step, type Tally } from './pump.ts'
import { type RetryOptions, type RetryPolicy, retryPolicy } from './retry-policy.ts'
import type { Delivery, Session, Source } from './source.ts'
import { Task } from './task.ts'
import { Window } from './window.ts'
import { type Phase, Worker } from './worker.ts'

export interface FlowSettings {
  /** How many handlers, or batches, may run at once. Default 10, or 2 batches. */
  concurrency?: number
  /** How much may be taken and not yet settled. */
  buffer?: { count?: number; bytes?: number }
  /** How many to ask for at first, growing to the step's size while they come full. Default 100. */
  take?: number
  retry?: RetryOptions
  /** How long to wait when there was nothing, doubling from `base` to `max` while there is nothing. */
  poll?: { base?: Duration; max?: Duration }
  /** How long what is in flight may go on after a stop. Default 10 s. */
  grace?: Duration
  clock?: Clock
  random?: Random
}

export interface FlowOptions<D extends Delivery<Message>> extends FlowSettings {
  name: string
  from: Source<D>
  step: Step<D>
  phase?: Phase
}

export const FLOW_SETTINGS = ['concurrency', 'buffer', 'take', 'retry', 'poll', 'grace', 'clock', 'random'] as const

/** How long a handler that was told to give up may take to do so before its message is given back regardless. */
const ABORT_GRACE = 1000

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
  protected override readonly clock: Clock
  readonly #from: Source<D>
  readonly #step: Step<D>
  readonly #concurrency: number
  readonly #retry: RetryPolicy
  readonly #count: number
  readonly #bytes: number
  readonly #take: number
  readonly #poll: { base: number; max: number }
  readonly #grace: number
  readonly #window: { max: number }
  #open: { session: Session<D>; pump: Pump<D> } | undefined
  #changed: (() => void) | undefined

  constructor(options: FlowOptions<D>) {
    super()
    const where = `flow ${options.name}`
    checkOptions(where, options, ['name', 'from', 'step', 'phase', ...FLOW_SETTINGS])
    checkOptions(`${where}: buffer`, options.buffer, ['count', 'bytes'])
    checkOptions(`${where}: poll`, options.poll, ['base', 'max'])
    this.name = options.name
    this.phase = options.phase ?? 'consumers'
    this.clock = options.clock ?? systemClock
    this.#from = options.from
    this.#step = options.step
    const size = 'each' in options.step ? 1 : wholeNumber(`${where}: batch size`, options.step.size)
    this.#concurrency = wholeNumber(`${where}: concurrency`, options.concurrency ?? (size === 1 ? 10 : 2))
    this.#window = { max: size * this.#concurrency }
    this.#count = wholeNumber(
      `${where}: buffer.count`,
      options.buffer?.count ?? this.#window.max + Math.max(size, this.#concurrency),
    )
    this.#bytes = wholeNumber(`${where}: buffer.bytes`, options.buffer?.bytes ?? 64 * 1024 * 1024)
    this.#take = wholeNumber(`${where}: take`, options.take ?? 100)
    this.#retry = retryPolicy(`${where}: retry`, options.retry, options.random)
    const base = milliseconds(options.poll?.base ?? '1s', `${where}: poll.base`)
    this.#poll = { base, max: Math.max(base, milliseconds(options.poll?.max ?? '5s', `${where}: poll.max`)) }
    this.#grace = milliseconds(options.grace ?? '10s', `${where}: grace`)
  }

  /** Takes once, handles all of it, settles, and says how it went. What the destination was down for is given back. */
  async runOnce(): Promise<Tally> {
    await this.prepare()
    this.#open ??= await this.#openSession(new AbortController().signal)
    if (this.#open === undefined) return { taken: 0, done: 0, retry: 0, dead: 0, release: 0 }
    const { session, pump } = this.#open
    const before = { ...pump.tally }
    pump.probe()
    pump.taking = true
    try {
      pump.accept(await session.take({ count: this.#count, bytes: this.#bytes }, session.lost))
    } finally {
      pump.taking = false
    }
    await this.#until(() => pump.count === 0 || session.lost.aborted || (pump.paused && pump.inFlight === 0))
    pump.giveBack()
    await pump.flushed()
    if (session.lost.aborted) this.#open = undefined
    const { taken, done, retry, dead, release } = pump.tally
    return {
      taken: taken - before.taken,
      done: done - before.done,
      retry: retry - before.retry,
      dead: dead - before.dead,
      release: release - before.release,
    }
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      try {
        this.#open = await this.#openSession(signal)
        failures = 0
      } catch (error) {
        if (signal.aborted) return
        failures++
        const retryIn = this.#retry.breaker(failures)
        telemetry['flow.open_failed'].publish({ flow: this.name, error, retryIn })
        await this.clock.sleep(retryIn, signal)
        continue
      }
      if (this.#open === undefined) {
        await this.clock.sleep(this.#poll.base, signal)
        continue
      }
      await this.#work(this.#open.session, this.#open.pump, signal)
      this.#open = undefined
    }
  }

  protected override async ended(): Promise<void> {
    const open = this.#open
    this.#open = undefined
    if (open !== undefined) await this.#drain(open.session, open.pump)
  }

  async #openSession(signal: AbortSignal): Promise<{ session: Session<D>; pump: Pump<D> } | undefined> {
    const session = await this.#from.open(signal)
    if (session === undefined) return undefined
    telemetry['flow.opened'].publish({ flow: this.name })
    const pump = new Pump(session, {
      flow: this.name,
      step: this.#step,
      concurrency: this.#concurrency,
      features: this.#from.features,
      window: new Window(this.#window.max, session.cautious),
      retry: this.#retry,
      clock: this.clock,
      onChange: () => this.#changed?.(),
    })
    return { session, pump }
  }

  async #work(session: Session<D>, pump: Pump<D>, signal: AbortSignal): Promise<void> {
    const over = AbortSignal.any([signal, session.lost])
    const { extend, extendEvery } = session
    const renewal =
      extend === undefined || extendEvery === undefined
        ? undefined
        : new Task({
            name: `${this.name}: extend`,
            every: extendEvery,
            run: () => extend.call(session, pump.deliveries),
            clock: this.clock,
          })
    await renewal?.start()
    await this.#takeAll(session, pump, over)
    if (session.lost.aborted) {
      telemetry['flow.lost'].publish({ flow: this.name, inHand: pump.count, reason: session.lost.reason })
    }
    await this.#drain(session, pump)
    await renewal?.stop()
  }

  async #takeAll(session: Session<D>, pump: Pump<D>, over: AbortSignal): Promise<void> {
    let ask = Math.min(this.#take, this.#count)
    let idle = this.#poll.base
    for (let failures = 0; !over.aborted; ) {
      // Not for one or two at a time: a take costs a round trip.
      await this.#until(
        () => this.#count - pump.count >= Math.min(ask, this.#count >> 1 || 1) && pump.bytes < this.#bytes,
        over,
      )
      if (over.aborted) return
      const count = Math.min(ask, this.#count - pump.count)
      let taken: readonly D[]
      pump.taking = true
      try {
        taken = await session.take({ count, bytes: this.#bytes - pump.bytes }, over)
        failures = 0
      } catch (error) {
        if (over.aborted) return
        failures++
        const retryIn = this.#retry.breaker(failures)
        telemetry['flow.take_failed'].publish({ flow: this.name, error, retryIn })
        await this.clock.sleep(retryIn, over)
        continue
      } finally {
        pump.taking = false
      }
      if (taken.length > 0) {
        if (telemetry['flow.taken'].active) telemetry['flow.taken'].publish({ flow: this.name, count: taken.length })
        pump.accept(taken)
        ask = taken.length >= ask ? Math.min(ask * 2, this.#count) : Math.min(this.#take, this.#count)
        idle = this.#poll.base
        continue
      }
      await (session.wait?.(idle, over) ?? this.clock.sleep(idle, over))
      idle = Math.min(idle * 2, this.#poll.max)
    }
  }

  /** What has not gone out is given back at once; what is in flight may finish within the grace period. */
  async #drain(session: Session<D>, pump: Pump<D>): Promise<void> {
    pump.close()
    if (!session.lost.aborted && pump.inFlight > 0) {
      await this.#within(this.#grace, () => pump.inFlight === 0 || session.lost.aborted)
    }
    pump.abort(new DOMException(`${this.name} is stopping`, 'AbortError'))
    if (pump.inFlight > 0) await this.#within(ABORT_GRACE, () => pump.inFlight === 0)
    await this.#bounded(pump.flushed())
    pump.lastTry()
    pump.abandon()
    await this.#bounded(pump.flushed())
    await this.#bounded(session.close())
  }

  /** A stop ends even where a server has stopped answering: what it could not be told, it will find out. */
  async #bounded(work: Promise<void>): Promise<void> {
    const done = new AbortController()
    await Promise.race([work.finally(() => done.abort()), this.clock.sleep(this.#grace, done.signal)])
  }

  async #within(ms: number, condition: () => boolean): Promise<void> {
    const timeout = new AbortController()
    const slept = this.clock.sleep(ms, timeout.signal).then(() => timeout.abort())
    await this.#until(condition, timeout.signal)
    timeout.abort()
    await slept
  }

  /** Resolves when `condition` holds, looked at whenever something changes, or when `signal` aborts. */
  #until(condition: () => boolean, signal?: AbortSignal): Promise<void> {
    if (signal?.aborted || condition()) return Promise.resolve()
    return new Promise((resolve) => {
      const look = () => {
        if (!signal?.aborted && !condition()) return
        this.#changed = undefined
        signal?.removeEventListener('abort', look)
        resolve()
      }
      this.#changed = look
      signal?.addEventListener('abort', look)
    })
  }
}
