import { type Deadline, Deadlines, sharedController, tooLong } from '../core/deadlines.ts'
import { type Clock, onAbort } from '../core/index.ts'

/** Calls that began at about the same time. They share a signal, and their time is up together. */
export interface CallGroup {
  readonly controller: AbortController
  readonly signal: AbortSignal
  /** How many of its calls have not returned. */
  pending: number
  /** The time is up. */
  over: boolean
  /** When no more calls join, and then when the time is up. */
  deadline: Deadline | undefined
}

/**
 * How long the handlers of one session may take. A signal and a timer for each message would cost more than the rest of its
 * way through the flow. So calls that begin within a short time form a group, and all groups share one timer. A call has its
 * whole time, and may be stopped later than that by what its group took to fill: 1/300 of the limit, 100 ms at most.
 *
 *   const group = limit.group()       its signal is for the call that begins now
 *   limit.begin(group)                the call has returned a promise
 *   limit.end(group)                  that has settled
 *   limit.quiet()                     nothing will begin for now: no timer is left
 *
 * When the time of a group is up its signal aborts, and `onLate` is called if some of its calls are still pending.
 */
export class TimeLimit {
  readonly #ms: number
  readonly #width: number
  readonly #onLate: (group: CallGroup) => void
  readonly #deadlines: Deadlines
  /** Those with a deadline. */
  readonly #groups = new Set<CallGroup>()
  #current: CallGroup | undefined
  /** Why the session ended. */
  #ended: { readonly reason: unknown } | undefined

  /** `signal` is the session's: its end is the end of each call. */
  constructor(signal: AbortSignal, ms: number, clock: Clock, onLate: (group: CallGroup) => void) {
    this.#ms = ms
    this.#width = Math.min(100, Math.max(1, ms / 300))
    this.#onLate = onLate
    this.#deadlines = new Deadlines(clock)
    onAbort(signal, () => this.#end(signal.reason))
  }

  /** The group for calls that begin now. Its time starts with the first call that returns a promise. */
  group(): CallGroup {
    if (this.#current !== undefined) return this.#current
    const controller = sharedController()
    if (this.#ended !== undefined) controller.abort(this.#ended.reason)
    const group = { controller, signal: controller.signal, pending: 0, over: false, deadline: undefined }
    this.#current = group
    return group
  }

  begin(group: CallGroup): void {
    group.pending++
    // The call may itself have asked for the end.
    if (this.#ended !== undefined) group.controller.abort(this.#ended.reason)
    else if (group.deadline === undefined) this.#start(group)
  }

  end(group: CallGroup): void {
    group.pending--
    if (group.pending === 0 && group !== this.#current) this.#drop(group)
  }

  quiet(): void {
    for (const group of this.#groups) if (group.pending === 0) this.#drop(group)
  }

  #start(group: CallGroup): void {
    this.#groups.add(group)
    group.deadline = this.#deadlines.add(this.#width, () => this.#close(group))
  }

  /** No more calls join. The last of them may have begun just now. */
  #close(group: CallGroup): void {
    if (this.#current === group) this.#current = undefined
    if (group.pending === 0) this.#drop(group)
    else group.deadline = this.#deadlines.add(this.#ms, () => this.#due(group))
  }

  #drop(group: CallGroup): void {
    this.#groups.delete(group)
    if (group.deadline !== undefined) this.#deadlines.delete(group.deadline)
    if (this.#current === group) this.#current = undefined
  }

  #due(group: CallGroup): void {
    this.#drop(group)
    group.over = true
    // Before its calls are late: one that heeds its signal may still say what it has waited for.
    group.controller.abort(tooLong('handling it', this.#ms))
    setImmediate(() => this.#onLate(group))
  }

  /**
   * The session is over, or its end was asked for: all calls are asked to stop. They have no deadline any more. Whoever
   * ends a session waits for them only so long, and a timer would keep the process from ending.
   */
  #end(reason: unknown): void {
    this.#ended = { reason }
    for (const group of this.#groups) {
      group.controller.abort(reason)
      this.#drop(group)
    }
    this.#current = undefined
  }
}
