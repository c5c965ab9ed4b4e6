import { type Clock, describe, WaybillError } from '../core/index.ts'
import { SharedLook } from '../flow/shared-look.ts'
import { idText } from './definition.ts'
import { AHEAD } from './owned.ts'
import type { LogToken, ProjectionId } from './port.ts'
import type { ProjectionLook, ProjectionStore } from './store.ts'

/**
 * Whether a view has what was written. Only `reached` means that it has.
 * - `reached`: all of it was applied;
 * - `timeout`: not yet, and nothing is known to be wrong;
 * - `stalled`: something keeps the projection, and `reason` says what: an open transaction, an error, or that nobody runs it;
 * - `parked`: an event of the write could not be applied, or waits behind one that could not;
 * - `building`: the projection has just begun, or is still reading what was there before;
 * - `unknown`: it has never run, or was retired, or its database cannot be asked.
 */
export type WaitAnswer =
  | { readonly answer: 'reached' | 'timeout' | 'building'; readonly reason?: undefined }
  | { readonly answer: 'stalled' | 'parked' | 'unknown'; readonly reason: string }

export const REACHED: WaitAnswer = { answer: 'reached' }
export const BUILDING: WaitAnswer = { answer: 'building' }

/** One who waits here until a view has a write. */
export class ViewWaiter {
  readonly projection: ProjectionId
  readonly token: LogToken
  readonly settled: Promise<void>
  answer: WaitAnswer | undefined
  neverRan = false
  /** The token is of another log. */
  failure: WaybillError | undefined
  #resolve!: () => void

  constructor(projection: ProjectionId, token: LogToken) {
    this.projection = projection
    this.token = token
    this.settled = new Promise((resolve) => {
      this.#resolve = resolve
    })
  }

  get isSettled(): boolean {
    return this.answer !== undefined || this.failure !== undefined
  }

  settle(answer: WaitAnswer): void {
    this.answer ??= answer
    this.#resolve()
  }

  /** Resolves, if what was seen decides it. */
  judge({ checkpoint, parked }: ProjectionLook): void {
    if (checkpoint === undefined) {
      this.neverRan = true
      this.settle({
        answer: 'unknown',
        reason: `projection ${idText(this.projection)} has never run here, or was retired`,
      })
    } else if (isForeign(this.token, checkpoint)) {
      this.failure = foreign(this.projection, checkpoint, this.token)
      this.#resolve()
    } else if (parked.length > 0) {
      const failed = parked.find(({ error }) => error !== undefined)
      const reason = failed?.error ?? 'it waits behind an earlier event of its key'
      this.settle({ answer: 'parked', reason: `event ${(failed ?? parked[0]!).position}: ${reason}` })
    } else if (checkpoint.problem?.includes(AHEAD)) this.settle({ answer: 'stalled', reason: checkpoint.problem })
    else if (checkpoint.position >= this.token.positions.at(-1)!) this.settle(REACHED)
    else if (checkpoint.builtAt === undefined && checkpoint.problem === undefined) this.settle(BUILDING)
  }
}

/** How often those who wait look, all of them together, in milliseconds; and the longest pause while that fails. */
const LOOK = { min: 10, max: 500 }

/**
 * Who waits here for views of one store: one look for all of them, again and again, and at once when a projector of this
 * process has written.
 */
class ViewWaiters {
  readonly #store: ProjectionStore
  readonly #waiting = new Set<ViewWaiter>()
  #look: SharedLook<ViewWaiter> | undefined

  constructor(store: ProjectionStore) {
    this.#store = store
  }

  /** Looks for it now; and, if it is to be waited for, until it is forgotten. */
  async look(waiter: ViewWaiter, waits: boolean, clock: Clock): Promise<void> {
    this.#look ??= new SharedLook({
      name: `${this.#store.name}: those who wait`,
      look: (waiters) => this.#judge(waiters),
      pause: () => LOOK.min,
      backoff: LOOK,
      clock,
    })
    this.#waiting.add(waiter)
    await this.#look.once(waiter)
    if (waits && !waiter.isSettled && this.#waiting.has(waiter)) await this.#look.add(waiter)
  }

  forget(waiter: ViewWaiter): void {
    this.#waiting.delete(waiter)
    this.#look?.remove(waiter)
  }

  /** A projector of this process has moved it, parked an event of it, or reports how it is. */
  report({ name, version }: ProjectionId): void {
    for (const { projection, isSettled } of this.#waiting) {
      if (isSettled || projection.name !== name || projection.version !== version) continue
      this.#look!.wake()
      return
    }
  }

  async #judge(waiters: readonly ViewWaiter[]): Promise<void> {
    const looks = await this.#store.look(
      waiters.map(({ projection, token: { positions } }) => ({ projection, positions })),
    )
    for (const [i, waiter] of waiters.entries()) waiter.judge(looks[i]!)
  }
}

const known = new WeakMap<ProjectionStore, ViewWaiters>()

export function waitersOf(store: ProjectionStore): ViewWaiters {
  const waiters = known.get(store) ?? new ViewWaiters(store)
  known.set(store, waiters)
  return waiters
}

/** Which log: by its table, and which of that name, where both sides know. */
interface Which {
  readonly log: string
  readonly incarnation?: string | undefined
}

export function isForeign(token: Which, ours: Which): boolean {
  if (token.log !== ours.log) return true
  return token.incarnation !== undefined && ours.incarnation !== undefined && token.incarnation !== ours.incarnation
}

export function foreign(projection: ProjectionId, ours: Which, theirs: Which): WaybillError {
  const same = ours.log === theirs.log ? ' of another database, or made before it was created anew' : ''
  return new WaybillError(
    'FOREIGN_TOKEN',
    `the token is of the log ${describe(theirs.log)}${same}, and ${idText(projection)} follows ${describe(ours.log)}: positions of two logs are never compared`,
  )
}
