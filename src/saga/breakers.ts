import { type Backoff, backoff, type Clock, errorSummary, type Random, telemetry } from '../core/index.ts'
import type { Condition } from '../flow/status.ts'

/**
 * Whether a step of a saga works at all, as this process has seen it. While every saga fails at it, it is away: one of them
 * tries it now and then, the others wait, and nobody's time is counted. Other steps are not concerned.
 */
class StepBreaker {
  /** Who has failed since the last success. */
  readonly sagas = new Set<string>()
  failures = 0
  /** An error said that it is away. */
  down = false
  retryAt = 0
  probing = false

  get open(): boolean {
    return this.down || this.sagas.size > 1
  }
}

/** Milliseconds. So long after its time nobody has tried it: no saga waits for it here any more. */
const UNTRIED = 600_000

/** One for each step of each type of saga, and for its undo. While one is away the runner is `paused`, and says why. */
export class Breakers {
  readonly #clock: Clock
  readonly #condition: Condition
  readonly #pause: Backoff
  readonly #breakers = new Map<string, StepBreaker>()

  constructor(clock: Clock, condition: Condition, random?: Random) {
    this.#clock = clock
    this.#condition = condition
    this.#pause = backoff({}, 'breaker', random === undefined ? {} : { random })
  }

  /** Milliseconds to wait before it is tried by this saga; 0: now. */
  enter(name: string): number {
    const breaker = this.#breakers.get(name)
    if (breaker === undefined || !breaker.open) return 0
    const left = breaker.retryAt - this.#clock.monotonic()
    if (left > 0 || breaker.probing) return Math.max(left, 1) + this.#pause(1)
    breaker.probing = true
    return 0
  }

  /** It answered, if only with a refusal. */
  answered(name: string): void {
    const breaker = this.#breakers.get(name)
    if (breaker === undefined) return
    this.#forget(name)
    if (breaker.open) telemetry['saga.step_resumed'].publish({ step: name, failures: breaker.failures })
  }

  /** It did not. Returns whether the time of this try counts. */
  failed(name: string, saga: string, isDown: boolean, error: unknown): boolean {
    const breaker = this.#breakers.get(name) ?? new StepBreaker()
    this.#breakers.set(name, breaker)
    const before = breaker.open
    if (breaker.sagas.size < 2) breaker.sagas.add(saga)
    breaker.failures++
    breaker.down ||= isDown
    breaker.probing = false
    const retryIn = this.#pause(breaker.failures)
    breaker.retryAt = this.#clock.monotonic() + retryIn
    if (breaker.open) this.#condition.hinder(name, 'paused', `step ${name} is away: ${errorSummary(error)}`, retryIn)
    if (breaker.open && !before) telemetry['saga.step_paused'].publish({ step: name, error, retryIn })
    return !breaker.open
  }

  /** The try was broken off: it says nothing. */
  left(name: string): void {
    const breaker = this.#breakers.get(name)
    if (breaker !== undefined) breaker.probing = false
  }

  /** The steps that are away, and for which somebody waits. */
  get open(): readonly string[] {
    const now = this.#clock.monotonic()
    for (const [name, { retryAt, probing }] of this.#breakers) {
      if (!probing && now - retryAt > UNTRIED) this.#forget(name)
    }
    return [...this.#breakers].filter(([, breaker]) => breaker.open).map(([name]) => name)
  }

  #forget(name: string): void {
    this.#breakers.delete(name)
    this.#condition.clear(name)
  }
}
