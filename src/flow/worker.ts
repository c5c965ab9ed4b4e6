import { type Clock, systemClock, telemetry, WaybillError } from '../core/index.ts'

/**
 * When a worker stops, in the order of a whole process: nothing new comes in first, what others still need goes last.
 */
export const PHASES = ['requests', 'consumers', 'relays', 'connections', 'stores'] as const
export type Phase = (typeof PHASES)[number]

/**
 * Whatever runs in the background: start, stop with a drain, `runOnce` for one round in the foreground (tests,
 * scripts, cron). There are two kinds, Flow and Task; every role is one of them.
 */
export abstract class Worker<Round = unknown> {
  abstract readonly name: string
  readonly phase: Phase = 'consumers'
  protected readonly clock: Clock = systemClock
  #controller: AbortController | undefined
  #starting: Promise<void> | undefined
  #running: Promise<void> | undefined
  #stopping: Promise<void> | undefined

  /** One round, now. Not while it is started. */
  abstract runOnce(): Promise<Round>

  /** Goes on until `signal` aborts, then drains and resolves. Rejects only for what no retry can mend. */
  protected abstract run(signal: AbortSignal): Promise<void>

  /** Called once by `start` and by the first `runOnce`: checks settings, freezes registrations. */
  protected prepare(): void | Promise<void> {}

  get started(): boolean {
    return this.#running !== undefined || this.#starting !== undefined
  }

  /** Resolves when the worker has stopped; rejects when it could not go on. */
  get finished(): Promise<void> {
    return this.#running ?? Promise.resolve()
  }

  async start(): Promise<this> {
    if (this.started) throw new WaybillError('ALREADY_STARTED', `${this.name} is already started`)
    this.#starting = this.#start()
    try {
      await this.#starting
    } finally {
      this.#starting = undefined
    }
    return this
  }

  async #start(): Promise<void> {
    await this.prepare()
    const controller = new AbortController()
    this.#controller = controller
    this.#running = this.run(controller.signal)
    this.#running.catch(() => {}) // `finished` and `stop` tell; it must not also end the process
    telemetry['worker.started'].publish({ worker: this.name })
  }

  /** Stops taking in, lets what is in flight finish, and resolves when nothing is left running. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  async #stop(): Promise<void> {
    const began = this.clock.monotonic()
    // Whoever started it is told of a failure.
    if (this.#starting !== undefined) await this.#starting.catch(() => {})
    this.#controller?.abort(new WaybillError('STOPPED', `${this.name} was stopped`))
    try {
      try {
        await this.#running
      } finally {
        await this.ended()
      }
    } finally {
      this.#running = undefined
      this.#stopping = undefined
      telemetry['worker.stopped'].publish({ worker: this.name, took: this.clock.monotonic() - began })
    }
  }

  /** Called at the end of `stop`, also when only `runOnce` was used. */
  protected async ended(): Promise<void> {}
}
