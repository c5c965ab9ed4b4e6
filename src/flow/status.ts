import type { Clock } from '../core/index.ts'

/** What every status says. */
interface StatusFacts {
  readonly name: string
  /** Since when it is in this state. */
  readonly since: Date
  /** When it last moved something, or ended a round. */
  readonly lastSuccess?: Date
  /** How many messages it has taken and not settled. */
  readonly unsettled?: number
  /** When it tries again. In the past: the try is under way. */
  readonly retryAt?: Date
  /** The workers it is made of. */
  readonly children?: readonly Status[]
}

/** How a worker is. `running` means that it moves things, or has nothing to move. */
export type Status = StatusFacts &
  (
    | {
        /** `starting`: it has not got through for the first time. `draining`: it was asked to stop. */
        readonly state: 'stopped' | 'starting' | 'running' | 'draining'
        /** Why it ended by itself, or what its stop waits for. */
        readonly reason?: string
      }
    | {
        /** `waiting`: for another's right to end. `paused`: what it depends on is away. `failing`: an error keeps it. */
        readonly state: Obstacle['state']
        readonly reason: string
      }
  )

export type WorkerState = Status['state']

/** What keeps a worker from moving things. */
export interface Obstacle {
  readonly state: 'waiting' | 'paused' | 'failing'
  readonly reason: string
  readonly retryAt?: Date
}

/** From the worst to the best: a worker is as its worst obstacle, and a parent as its worst child. */
const WORST_FIRST: readonly WorkerState[] = ['failing', 'paused', 'waiting', 'starting', 'running']

/** Milliseconds. A shorter wait is part of every deploy. */
const PATIENCE = 3000

/** The state of one worker, and since when. Written where things happen, read by `status()`. */
export class Condition {
  /** By the monotonic clock, as of the last success. A plain field: it is written with every batch. */
  succeededAt: number | undefined
  readonly #clock: Clock
  readonly #waits: (reason: string, waitedFor: number) => void
  /** That it waits has been reported. */
  #reported = false
  readonly #obstacles = new Map<string, Obstacle>()
  #phase: 'stopped' | 'starting' | 'running' | 'draining' = 'stopped'
  #reason: string | undefined
  #state: WorkerState = 'stopped'
  #since: number

  /** `waits` is called once when it has waited for some seconds, by whoever finds that it still must. */
  constructor(clock: Clock, waits: (reason: string, waitedFor: number) => void = () => {}) {
    this.#clock = clock
    this.#waits = waits
    this.#since = clock.now()
  }

  starting(): void {
    this.#enter('starting')
  }

  /** It has got through. */
  running(): void {
    if (this.#phase === 'starting') this.#enter('running')
  }

  draining(): void {
    this.#enter('draining')
  }

  stopped(reason?: string): void {
    this.#obstacles.clear()
    this.#enter('stopped', reason)
  }

  /** This `cause` keeps it from moving things; the next try comes after `retryIn` milliseconds. */
  hinder(cause: string, state: Obstacle['state'], reason: string, retryIn?: number): void {
    if (this.#phase === 'stopped') return
    const retryAt = retryIn === undefined ? {} : { retryAt: new Date(this.#clock.now() + retryIn) }
    this.#obstacles.set(cause, { state, reason, ...retryAt })
    this.#change()
    if (this.#state === 'waiting') this.#report(reason)
  }

  #report(reason: string): void {
    const waitedFor = this.#clock.now() - this.#since
    if (this.#reported || waitedFor < PATIENCE) return
    this.#reported = true
    this.#waits(reason, waitedFor)
  }

  /** This cause is gone. */
  clear(cause: string): void {
    if (this.#obstacles.size > 0 && this.#obstacles.delete(cause)) this.#change()
  }

  status(name: string): Status {
    const facts = { name, since: new Date(this.#since), ...this.#lastSuccess() }
    const obstacle = this.#worst()
    if (obstacle !== undefined && this.#state === obstacle.state) return { ...facts, ...obstacle }
    const reason = this.#reason ?? obstacle?.reason
    return { ...facts, state: this.#phase, ...(reason === undefined ? {} : { reason }) }
  }

  #enter(phase: 'stopped' | 'starting' | 'running' | 'draining', reason?: string): void {
    this.#phase = phase
    this.#reason = reason
    this.#change()
  }

  #change(): void {
    const ends = this.#phase === 'stopped' || this.#phase === 'draining'
    const state = ends ? this.#phase : (this.#worst()?.state ?? this.#phase)
    if (state === this.#state) return
    this.#state = state
    this.#since = this.#clock.now()
    this.#reported = false
  }

  #worst(): Obstacle | undefined {
    let worst: Obstacle | undefined
    for (const obstacle of this.#obstacles.values()) {
      if (worst === undefined || isWorse(obstacle.state, worst.state)) worst = obstacle
    }
    return worst
  }

  #lastSuccess(): { lastSuccess?: Date } {
    if (this.succeededAt === undefined) return {}
    const age = this.#clock.monotonic() - this.succeededAt
    return { lastSuccess: new Date(this.#clock.now() - age) }
  }
}

/**
 * A parent is as its worst child, with the reason of the one that has been so for the longest. `own` is what it says of
 * itself; those in `counted` move things for it.
 */
export function parentStatus(own: Status, children: readonly Status[], counted: readonly Status[] = children): Status {
  const sums = { ...own, children, ...totals([own, ...counted]) }
  if (own.state === 'stopped' || own.state === 'draining') return sums
  const alive = [own, ...children].filter(({ state }) => WORST_FIRST.includes(state))
  const worst = WORST_FIRST.find((state) => alive.some((one) => one.state === state))!
  const same = alive.filter(({ state }) => state === worst).sort((a, b) => a.since.getTime() - b.since.getTime())
  const { name, lastSuccess, unsettled } = sums
  const facts = {
    name,
    children,
    ...(lastSuccess === undefined ? {} : { lastSuccess }),
    ...(unsettled === undefined ? {} : { unsettled }),
  }
  if (worst === 'failing' || worst === 'paused' || worst === 'waiting') {
    const { since, retryAt } = same[0]!
    const reason = same.map((one) => (one === own ? one.reason! : `${one.name}: ${one.reason}`))
    const more = reason.length > 1 ? ` (and ${reason.length - 1} more)` : ''
    return { ...facts, state: worst, since, reason: reason[0]! + more, ...(retryAt === undefined ? {} : { retryAt }) }
  }
  // Since the last of them is.
  return { ...facts, state: worst, since: same.at(worst === 'running' ? -1 : 0)!.since }
}

function totals(all: readonly Status[]): { lastSuccess?: Date; unsettled?: number } {
  const times = all.flatMap(({ lastSuccess }) => (lastSuccess === undefined ? [] : [lastSuccess.getTime()]))
  const counts = all.flatMap(({ unsettled }) => (unsettled === undefined ? [] : [unsettled]))
  return {
    ...(times.length === 0 ? {} : { lastSuccess: new Date(Math.max(...times)) }),
    ...(counts.length === 0 ? {} : { unsettled: counts.reduce((sum, count) => sum + count, 0) }),
  }
}

function isWorse(a: WorkerState, b: WorkerState): boolean {
  return WORST_FIRST.indexOf(a) < WORST_FIRST.indexOf(b)
}
