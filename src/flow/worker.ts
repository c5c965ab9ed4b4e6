import {
  aborted,
  asError,
  type Clock,
  errorSummary,
  type GaugeSource,
  observe,
  onAbort,
  reportOnStderr,
  systemClock,
  telemetry,
  WaybillError,
  withDeadline,
} from '../core/index.ts'
import { Condition, type Status } from './status.ts'

/** How long a start may go on when a stop was asked for, in milliseconds. */
const START_ENDS_WITHIN = 1000

const SWITCHED_OFF = 'it is switched off (enabled: false): nothing is done, and nothing is lost'

/**
 * When a worker stops, in the order of a whole process: nothing new comes in first, what others still need goes last.
 */
export const PHASES = ['requests', 'consumers', 'relays', 'connections', 'stores'] as const
export type Phase = (typeof PHASES)[number]

/** Something that takes part in the order of a stop without being a worker: an HTTP server, a pool, a connection. */
export interface Stoppable {
  readonly name?: string
  readonly phase: Phase
  stop(): unknown
  /** How it is, if it says so. */
  status?(): Status
}

/**
 * Whatever runs in the background: start, stop with a drain, `runOnce` for one round in the foreground (tests,
 * scripts, cron), `status` for how it is. There are three kinds: Flow, Task, and Parent, which is made of others.
 */
export abstract class Worker<Round = unknown> {
  abstract readonly name: string
  readonly phase: Phase = 'consumers'
  protected readonly clock: Clock
  /** How it is, as `status()` shows it. */
  protected readonly condition: Condition
  /** `false`: it starts, does nothing, and says so. What it would have worked on stays as it is. */
  protected readonly enabled: boolean
  #controller: AbortController | undefined
  #starting: Promise<void> | undefined
  /** Aborted when a stop waits no longer for the start. */
  #patience = new AbortController()
  #running: Promise<void> | undefined
  #stopping: Promise<void> | undefined
  #over = false
  #unobserve = () => {}

  constructor(clock: Clock = systemClock, enabled = true) {
    this.clock = clock
    this.enabled = enabled
    this.condition = new Condition(clock, (reason, waitedFor) => {
      telemetry['worker.waiting'].publish({ worker: this.name, reason, waitedFor })
    })
  }

  /** What can be asked about what it works on, by whoever keeps metrics. */
  readonly gauges?: GaugeSource | undefined

  /** One round, now. Not while it is started. */
  abstract runOnce(): Promise<Round>

  /** Goes on until `signal` aborts, then drains and resolves. Rejects only for what no retry can mend. */
  protected abstract run(signal: AbortSignal): Promise<void>

  /**
   * Called once by `start` and by the first `runOnce`: checks settings, freezes registrations. When `signal` has aborted, it
   * begins nothing more: a stop does not wait for it.
   */
  protected prepare(_signal?: AbortSignal): void | Promise<void> {}

  /** Called by `start` alone, after `prepare`: what must be up before this counts as started. */
  protected async launch(_signal: AbortSignal): Promise<void> {}

  /** Whether it is started. One that ended by itself is not, and can be started again. */
  get started(): boolean {
    return this.#starting !== undefined || (this.#running !== undefined && !this.#over)
  }

  /** Resolves when the worker has stopped; rejects when it could not go on. */
  get finished(): Promise<void> {
    return this.#running ?? Promise.resolve()
  }

  /** How it is: moving, or kept from it, and why. */
  status(): Status {
    return this.condition.status(this.name)
  }

  async start(): Promise<this> {
    if (this.started) throw new WaybillError('ALREADY_STARTED', `${this.name} is already started`)
    this.#controller = new AbortController()
    this.#running = undefined
    this.#over = false
    this.condition.starting()
    this.#patience = new AbortController()
    this.#unobserve = observe(this)
    reportOnStderr()
    this.#starting = this.#start(this.#controller.signal)
    try {
      await this.#starting
    } catch (error) {
      this.condition.stopped(errorSummary(error))
      this.#unobserve()
      throw error
    } finally {
      this.#starting = undefined
    }
    return this
  }

  async #start(signal: AbortSignal): Promise<void> {
    const { signal: givenUp } = this.#patience
    await new Promise<void>((resolve, reject) => {
      onAbort(givenUp, () => reject(givenUp.reason))
      this.#launched(signal, givenUp).then(resolve, reject)
    })
    this.#running = this.#untilOver(signal)
    this.#running.catch(() => {}) // `finished` and `stop` reject with it; it must not also end the process
    telemetry['worker.started'].publish({ worker: this.name })
  }

  async #launched(signal: AbortSignal, givenUp: AbortSignal): Promise<void> {
    if (!this.enabled) return
    await this.prepare(signal)
    if (givenUp.aborted) return
    try {
      await this.launch(signal)
    } catch (error) {
      if (!givenUp.aborted) await this.ended().catch(() => {}) // what kept it from starting tells more
      throw error
    }
  }

  /** All of its life. One that cannot go on gives back what it has at once: it may be started again. */
  async #untilOver(signal: AbortSignal): Promise<void> {
    let failure: { readonly error: unknown } | undefined
    try {
      // It may have been stopped while it started.
      if (!signal.aborted) await (this.enabled ? this.run(signal) : this.#idle(signal))
    } catch (error) {
      failure = { error }
    }
    try {
      if (this.enabled) await this.ended()
    } catch (error) {
      failure ??= { error }
    }
    this.#over = true
    this.#unobserve()
    if (failure === undefined) {
      this.condition.stopped()
      return
    }
    this.condition.stopped(errorSummary(failure.error))
    // Whoever stops it gets the error from `stop`.
    if (!signal.aborted) telemetry['worker.failed'].publish({ worker: this.name, error: asError(failure.error) })
    throw failure.error
  }

  async #idle(signal: AbortSignal): Promise<void> {
    this.condition.hinder('enabled', 'paused', SWITCHED_OFF)
    telemetry.warning.publish({ where: this.name, message: SWITCHED_OFF })
    await aborted(signal)
  }

  /** Stops taking in, lets what is in flight finish, and resolves when nothing is left running. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  async #stop(): Promise<void> {
    const began = this.clock.monotonic()
    if (this.started) this.condition.draining()
    this.#controller?.abort(new WaybillError('STOPPED', `${this.name} was stopped`))
    if (this.#starting !== undefined) await this.#endStarting(this.#starting)
    try {
      if (this.#running === undefined) await this.ended()
      else await this.#running
    } finally {
      this.#running = undefined
      this.#stopping = undefined
      telemetry['worker.stopped'].publish({ worker: this.name, took: this.clock.monotonic() - began })
    }
  }

  /** What a start waits for may hang, and a stop ends all the same. Whoever started it gets the error. */
  async #endStarting(starting: Promise<void>): Promise<void> {
    const ended = starting.catch(() => {})
    await withDeadline<unknown>(ended, START_ENDS_WITHIN, this.clock, () => {})
    this.#patience.abort(new WaybillError('STOPPED', `${this.name} was stopped while it was starting`))
    await ended
  }

  /** Called when `run` has ended; and by `stop` when only `runOnce` was used. */
  protected async ended(): Promise<void> {}
}
