import {
  asError,
  type Backoff,
  type BackoffOptions,
  backoff,
  type Clock,
  checkOptions,
  type Duration,
  errorSummary,
  milliseconds,
  type OptionNames,
  type Random,
  telemetry,
  Wakeup,
} from '../core/index.ts'
import { type Phase, Worker } from './worker.ts'

export interface TaskOptions<Round> {
  name: string
  /** The pause between two rounds, from the end of one to the start of the next. */
  every: Duration
  /** One round. */
  run: (signal: AbortSignal) => Promise<Round>
  /** Whether to go on without a pause after this round, or after how many milliseconds. */
  again?: (round: Round) => boolean | number
  /** The pause after rounds that failed. Default: `every`, doubling to 60 s. */
  backoff?: BackoffOptions
  phase?: Phase
  /** `false`: it starts, does nothing, and says so. Default true. */
  enabled?: boolean
  clock?: Clock
  random?: Random
}

const TASK_OPTIONS: OptionNames<TaskOptions<unknown>> = {
  name: true,
  every: true,
  run: true,
  again: true,
  backoff: true,
  phase: true,
  enabled: true,
  clock: true,
  random: true,
}

/** A scheduled `runOnce`: cleaner, scanner, reclaimer, renewal. A failed round is reported, and the next waits longer. */
export class Task<Round = unknown> extends Worker<Round> {
  readonly name: string
  override readonly phase: Phase
  readonly #every: number
  readonly #options: TaskOptions<Round>
  readonly #backoff: Backoff
  readonly #wakeup: Wakeup
  #woken = false

  constructor(options: TaskOptions<Round>) {
    super(options.clock, options.enabled)
    checkOptions(`task ${options.name}`, options, TASK_OPTIONS)
    this.name = options.name
    this.phase = options.phase ?? 'relays'
    this.#every = milliseconds(options.every, `task ${options.name}: every`)
    this.#options = options
    this.#wakeup = new Wakeup(this.clock)
    const random = options.random === undefined ? {} : { random: options.random }
    const defaults = { min: this.#every, max: Math.max(this.#every, 60_000), ...random }
    this.#backoff = backoff(options.backoff, `task ${options.name}: backoff`, defaults)
  }

  async runOnce(): Promise<Round> {
    await this.prepare()
    return this.#options.run(new AbortController().signal)
  }

  /** Ends the pause between two rounds, or leaves out the next one. A pause after a failure goes on. */
  wake(): void {
    this.#woken = true
    this.#wakeup.wake()
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      const began = this.clock.monotonic()
      let pause = this.#every
      let failed = false
      this.#woken = false
      try {
        const round = await this.#options.run(signal)
        failures = 0
        this.condition.succeededAt = this.clock.monotonic()
        this.condition.clear('round')
        this.condition.running()
        const again = this.#options.again?.(round)
        if (typeof again === 'number') pause = again
        else if (again) pause = 0
        telemetry['task.ran'].publish({ task: this.name, took: this.clock.monotonic() - began })
      } catch (error) {
        if (signal.aborted) return
        failures++
        failed = true
        pause = this.#backoff(failures)
        this.condition.hinder('round', 'failing', errorSummary(error), pause)
        telemetry['task.failed'].publish({ task: this.name, error: asError(error), retryIn: pause })
      }
      if (failed) await this.clock.sleep(pause, signal)
      else if (!this.#woken) await this.#wakeup.pause(pause, signal)
    }
  }
}
