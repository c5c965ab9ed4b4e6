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
} from '../core/index.ts'
import { type Phase, Worker } from './worker.ts'

export interface TaskOptions<Round> {
  name: string
  /** The pause between two rounds, from the end of one to the start of the next. */
  every: Duration
  /** One round. */
  run: (signal: AbortSignal) => Promise<Round>
  /** Whether to go on without a pause after this round. */
  again?: (round: Round) => boolean
  /** The pause after rounds that failed. Default: `every`, doubling to 60 s. */
  backoff?: BackoffOptions
  phase?: Phase
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
  clock: true,
  random: true,
}

/** A scheduled `runOnce`: cleaner, scanner, reclaimer, renewal. A round that fails is told, and the next waits longer. */
export class Task<Round = unknown> extends Worker<Round> {
  readonly name: string
  override readonly phase: Phase
  readonly #every: number
  readonly #options: TaskOptions<Round>
  readonly #backoff: Backoff

  constructor(options: TaskOptions<Round>) {
    super(options.clock)
    checkOptions(`task ${options.name}`, options, TASK_OPTIONS)
    this.name = options.name
    this.phase = options.phase ?? 'relays'
    this.#every = milliseconds(options.every, `task ${options.name}: every`)
    this.#options = options
    const random = options.random === undefined ? {} : { random: options.random }
    const defaults = { min: this.#every, max: Math.max(this.#every, 60_000), ...random }
    this.#backoff = backoff(options.backoff, `task ${options.name}: backoff`, defaults)
  }

  async runOnce(): Promise<Round> {
    await this.prepare()
    return this.#options.run(new AbortController().signal)
  }

  protected override async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      const began = this.clock.monotonic()
      let pause = this.#every
      try {
        const round = await this.#options.run(signal)
        failures = 0
        this.condition.succeededAt = this.clock.monotonic()
        this.condition.clear('round')
        this.condition.running()
        if (this.#options.again?.(round)) pause = 0
        telemetry['task.ran'].publish({ task: this.name, took: this.clock.monotonic() - began })
      } catch (error) {
        if (signal.aborted) return
        failures++
        pause = this.#backoff(failures)
        this.condition.hinder('round', 'failing', errorSummary(error), pause)
        telemetry['task.failed'].publish({ task: this.name, error: asError(error), retryIn: pause })
      }
      await this.clock.sleep(pause, signal)
    }
  }
}
