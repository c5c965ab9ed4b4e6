import { type Clock, errorSummary, pauseAfter, telemetry } from '../core/index.ts'
import type { RetryPolicy } from './retry-policy.ts'
import type { Condition } from './status.ts'

/**
 * How many may be in flight: breaker, outage and poison in one rule.
 *
 * A collective failure (the destination is down, the connection closed, the session lost) says nothing about any one
 * message, so it charges nobody and sets the window to one: each then goes out alone until successes, doubling, have
 * opened it again. Starting small costs a few round trips; starting large would make every innocent fail together
 * with the one that does the harm.
 *
 * Only one that fails alone is suspected. It goes to the end of the queue, so the next probe is another message. If
 * others have arrived since and it fails alone again, it is charged. While everything fails nobody is charged: that
 * is an outage.
 *
 * One that fails while another beside it arrives has failed by itself, and closes nothing (decision 0038). It is marked.
 * It goes out again when one has arrived that went out since: the destination is there. It goes with others, but not with
 * another that is marked: it may be the victim of one. If it fails again it is charged. The more were charged in a row, the
 * more marked ones may be out at once; one that arrives was a victim, and they go one by one again.
 *
 * When a marked one fails and nobody is there to compare, that says nothing about the destination: it waits for its next
 * try, and no pause follows.
 */
export class Window {
  readonly max: number
  /** How many may be in flight now. */
  size: number
  /** How many calls went out: the number of the next. It outlives sessions, as the marks do. */
  dispatched = 0
  /** How many marked ones may be in flight now. */
  markedAtOnce = 1
  /** Collective failures in a row, without the first after something arrived. */
  failures = 0
  /** Grows with every collective failure. What went out in an earlier generation proves nothing about this one. */
  generation = 0
  #failing = false
  /** So many failures bring no pause yet, since something arrived before them: the next to go out decides. */
  #spared = 0
  #arrived = 0
  /** Who failed alone, and how many had arrived by then. */
  readonly #suspects = new Map<string, number>()
  /** Who is to be charged, though the session in which it failed can write nothing any more. */
  readonly #owed = new Set<string>()
  /** Who failed beside others that arrived. */
  readonly #marked = new Map<string, SuspectMark>()
  /** The highest number of a call that arrived. */
  #latest = -1

  constructor(max: number) {
    this.max = max
    this.size = max
  }

  /** One at a time, although nothing has failed yet. */
  narrow(): void {
    this.size = 1
  }

  /** Whether anybody is suspected or marked. */
  get suspects(): number {
    return this.#suspects.size + this.#marked.size
  }

  /** How many have failed alone. */
  get alone(): number {
    return this.#suspects.size
  }

  /** One that has failed alone before goes alone again: it must not take others with it. */
  isSuspect(id: string): boolean {
    return this.#suspects.size > 0 && this.#suspects.has(id)
  }

  /** A suspect has an outcome of its own. */
  acquit(id: string): void {
    this.#suspects.delete(id)
    this.#marked.delete(id)
  }

  isMarked(id: string): boolean {
    return this.#marked.size > 0 && this.#marked.has(id)
  }

  /** Whether some failed while others arrived: then a failure is less of a proof that all would. */
  get doubtful(): boolean {
    return this.#marked.size > 0
  }

  /** A marked one has arrived. */
  cleared(): void {
    this.markedAtOnce = 1
  }

  /** Whether one has arrived that went out since this one was marked, or charged so: if it fails now, it is to blame. */
  isProven(id: string): boolean {
    const mark = this.#marked.get(id)
    return mark !== undefined && this.#latest >= mark.since
  }

  /** A marked one goes out. What arrives from now on proves nothing about it: an outage may just have ended. */
  tries(id: string): void {
    const mark = this.#marked.get(id)
    if (mark !== undefined) mark.proven = this.#latest >= mark.since
  }

  /** It failed, and one that was out beside it arrived. */
  mark(id: string): void {
    if (this.#marked.has(id)) return
    evictOldest(this.#marked, MAX_MARKED)
    this.#marked.set(id, { since: this.dispatched, proven: false })
  }

  /** A marked one failed, and one that was out beside it arrived. Returns whether it is to be charged. */
  failedBeside(id: string): boolean {
    const charged = this.failedAgain(id)
    if (charged) this.markedAtOnce = Math.min(this.max, this.markedAtOnce * 2)
    return charged
  }

  /** A marked one failed. Returns whether it is to be charged. */
  failedAgain(id: string): boolean {
    const mark = this.#marked.get(id)
    if (mark === undefined || !mark.proven) return false
    mark.since = this.dispatched
    mark.proven = false
    return true
  }

  /** Some that went out in `generation`, with the call of this number, have arrived. */
  arrived(count: number, generation: number, number: number): void {
    if (number > this.#latest) this.#latest = number
    if (generation !== this.generation) return
    this.#arrived += count
    this.failures = 0
    this.#failing = false
    this.#spared = this.#marked.size > 0 ? SPARED : 1
  }

  /** The source knows of some that arrived: only now could a crash not bring them back. */
  widen(): void {
    if (this.size < this.max && !this.#failing) this.size = Math.min(this.max, this.size * 2)
  }

  /** Several that went out in `generation` failed together. Returns whether that is news: one outage fails many calls. */
  failedTogether(generation: number): boolean {
    if (generation !== this.generation) return false
    this.generation++
    if (this.#spared > 0) this.#spared--
    else this.failures++
    this.size = 1
    this.#failing = true
    return true
  }

  /** Returns whether the message is to be charged: others have arrived since it failed alone before. */
  failedAlone(id: string): boolean {
    const before = this.#suspects.get(id)
    if (before !== undefined && this.#arrived > before) {
      this.#suspects.set(id, this.#arrived)
      return true
    }
    this.failedTogether(this.generation)
    if (before === undefined) evictOldest(this.#suspects, MAX_SUSPECTS)
    this.#suspects.set(id, this.#arrived)
    return false
  }

  /** Others are to go before it: nobody has arrived since it failed alone. */
  isUntried(id: string): boolean {
    return this.#suspects.get(id) === this.#arrived
  }

  /** The session was lost while nothing but this one was out. If that costs an attempt, the next session is to write it. */
  lostAlone(id: string): void {
    if (!this.failedAlone(id)) return
    evictOldest(this.#owed, MAX_SUSPECTS)
    this.#owed.add(id)
  }

  /** Whether it is to be charged for a session that was lost with it; asked once. */
  isOwed(id: string): boolean {
    return this.#owed.size > 0 && this.#owed.delete(id)
  }
}

interface SuspectMark {
  /** The number of the first call that went out since it failed. */
  since: number
  /** One of those had arrived when it went out again. */
  proven: boolean
}

const MAX_SUSPECTS = 1000

/** Failures in a row without a pause, while some are marked: those that fail may well be many among few. */
const SPARED = 10

/** More than those: a broken handler may fail thousands before they are dead. */
const MAX_MARKED = 20_000

function evictOldest(among: Map<string, unknown> | Set<string>, most: number): void {
  if (among.size >= most) among.delete(among.keys().next().value!)
}

export interface BreakerSettings {
  readonly flow: string
  readonly window: Window
  readonly retry: RetryPolicy
  readonly clock: Clock
  readonly condition: Condition
}

/** The longest pause while some are marked, in milliseconds: others may be there that would arrive. */
const SHORT = 1000

/** The pause after a collective failure, and its end: nothing goes out until the next probe is due. */
export class Breaker {
  paused = false
  readonly #settings: BreakerSettings
  readonly #abort: AbortSignal
  readonly #onProbe: () => void
  #since: number | undefined

  constructor(settings: BreakerSettings, abort: AbortSignal, onProbe: () => void) {
    this.#settings = settings
    this.#abort = abort
    this.#onProbe = onProbe
  }

  /** Pauses, unless the window spares it. Returns how long whoever failed should wait. */
  pause(error: unknown): number {
    const { flow, window, retry, clock, condition } = this.#settings
    const { failures, generation } = window
    const pause = Math.max(retry.outage(Math.max(1, failures)), pauseAfter(error))
    const retryIn = window.doubtful ? Math.min(pause, SHORT) : pause
    if (failures === 0) return retryIn
    this.paused = true
    this.#since ??= clock.monotonic()
    condition.hinder('breaker', 'paused', errorSummary(error), retryIn)
    telemetry['flow.paused'].publish({ flow, error, retryIn, failures })
    // By the generation and not by the time: a timer may fire a little early, and would then never fire again.
    clock.sleep(retryIn, this.#abort).then(() => {
      if (generation === window.generation) this.probe()
    })
    return retryIn
  }

  /** The next to go out is the probe. */
  probe(): void {
    this.paused = false
    this.#onProbe()
  }

  /** There has been nothing for a while that could be a probe. */
  nothingToProve(): void {
    if (!this.paused) this.#settings.condition.clear('breaker')
  }

  /** Some that went out in `generation`, with the call of this number, have arrived. */
  arrived(count: number, generation: number, number: number): void {
    const { flow, window, clock, condition } = this.#settings
    window.arrived(count, generation, number)
    if (this.#since === undefined || generation !== window.generation) return
    const pausedFor = clock.monotonic() - this.#since
    this.#since = undefined
    condition.clear('breaker')
    telemetry['flow.resumed'].publish({ flow, pausedFor })
  }
}
