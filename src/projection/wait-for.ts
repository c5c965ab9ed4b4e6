import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  systemClock,
  WaybillError,
  withDeadline,
} from '../core/index.ts'
import { Task } from '../flow/index.ts'
import { idText } from './definition.ts'
import { AHEAD } from './owned.ts'
import type { LogToken, Position, ProjectionId } from './port.ts'
import type { ProjectionDatabase, ProjectionLook, ProjectionStore } from './store.ts'

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

/** How long to wait for a write. */
export interface WaitForOptions {
  /** Default 5 s. 0: only look. */
  timeout?: Duration
  signal?: AbortSignal
}

/** A run of the projection in this process, which notifies directly. */
export interface Here {
  /** The id of the log it follows. */
  readonly log: string
  /** Of that log; `undefined` with the position. */
  readonly incarnation: string | undefined
  /** `undefined`: another process runs it. */
  readonly position: Position | undefined
  /** It runs, or waits for its turn. */
  readonly started: boolean
  readonly parkedCount: number
  watch(changed: () => void): () => void
}

/** A view as its readers know it. From `projector.view(projection)`, or `viewOf(store, projection)` elsewhere. */
export class View {
  readonly projection: ProjectionId
  readonly #db: Pick<ProjectionDatabase, 'projections' | 'leadership'>
  readonly #here: Here | undefined
  readonly #clock: Clock

  constructor(
    db: Pick<ProjectionDatabase, 'projections' | 'leadership'>,
    projection: ProjectionId,
    options: { here?: Here | undefined; clock?: Clock } = {},
  ) {
    this.projection = { name: projection.name, version: projection.version }
    this.#db = db
    this.#here = options.here
    this.#clock = options.clock ?? systemClock
  }

  /** Resolves when the view has what this token stands for, or with why it has not. */
  async waitFor(token: LogToken, options: WaitForOptions = {}): Promise<WaitAnswer> {
    checkOptions('waitFor', options, { timeout: true, signal: true })
    const timeout = milliseconds(options.timeout ?? '5s', 'waitFor: timeout')
    if (typeof token?.log !== 'string' || !Array.isArray(token.positions) || token.positions.length === 0) {
      throw new WaybillError('INVALID_TOKEN', `waitFor: ${describe(token)} is not a token; give log.token(receipts)`)
    }
    if (this.#here !== undefined && isForeign(token, this.#here)) throw foreign(this.projection, this.#here, token)
    if (this.#appliedHere(token)) return REACHED
    const waiter = new Waiter(this.projection, token)
    const forget = this.#here?.watch(() => {
      if (this.#appliedHere(token)) waiter.settle(REACHED)
      // Its own process knows no more than that: what is parked stands in the table.
      else if (this.#here!.position !== undefined) poller.look()
    })
    const poller = pollerOf(this.#db.projections, this.#clock)
    try {
      await poller.add(waiter)
      if (timeout > 0 && waiter.answer === undefined && waiter.failure === undefined) {
        await withDeadline(waiter.settled, timeout, this.#clock, () => {}, options.signal)
      }
    } finally {
      forget?.()
      poller.remove(waiter)
    }
    if (waiter.failure !== undefined) throw waiter.failure
    return waiter.neverRan ? this.#neverRan(waiter.answer!) : (waiter.answer ?? this.#late(waiter))
  }

  /** It has no checkpoint: somebody may just have begun. */
  async #neverRan(unknown: WaitAnswer): Promise<WaitAnswer> {
    if (this.#here?.started) return BUILDING
    const owners = await this.#owners().catch(() => [])
    return owners.length > 0 ? BUILDING : unknown
  }

  #owners() {
    return this.#db.leadership(`projection/${idText(this.projection)}`).terms()
  }

  #appliedHere({ positions }: LogToken): boolean {
    const { position, parkedCount } = this.#here ?? { position: undefined, parkedCount: 0 }
    return position !== undefined && parkedCount === 0 && position >= positions.at(-1)!
  }

  /** It is not there in time. Why not, as far as anybody knows? */
  async #late(waiter: Waiter): Promise<WaitAnswer> {
    try {
      const [look] = await this.#db.projections.look([
        { projection: this.projection, positions: waiter.token.positions },
      ])
      waiter.judge(look!)
      if (waiter.answer !== undefined) return waiter.answer
      const { problem } = look!.checkpoint!
      if (problem !== undefined) return { answer: 'stalled', reason: problem }
      const owners = await this.#owners()
      return owners.length === 0 ? { answer: 'stalled', reason: 'nobody runs this projection' } : { answer: 'timeout' }
    } catch (error) {
      return { answer: 'unknown', reason: `its database cannot be asked: ${errorSummary(error)}` }
    }
  }
}

const REACHED: WaitAnswer = { answer: 'reached' }
const BUILDING: WaitAnswer = { answer: 'building' }

/** One who waits. */
class Waiter {
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
    else if (checkpoint.builtAt === undefined) this.settle(BUILDING)
  }
}

/** How often those who wait look, all of them together, in milliseconds. */
const POLL = 10

/** One look for all who wait for views of a store in this process. It runs while somebody waits. */
class Poller {
  readonly #store: ProjectionStore
  readonly #task: Task<void>
  readonly #waiters = new Set<Waiter>()
  #stopping: Promise<void> | undefined

  constructor(store: ProjectionStore, clock: Clock) {
    this.#store = store
    const name = `${store.name}: those who wait`
    this.#task = new Task({ name, every: POLL, run: () => this.#round(), backoff: { min: POLL, max: 500 }, clock })
  }

  /** Resolves when it has been looked at once. */
  async add(waiter: Waiter): Promise<void> {
    const [look] = await this.#store.look([{ projection: waiter.projection, positions: waiter.token.positions }])
    waiter.judge(look!)
    if (waiter.answer !== undefined || waiter.failure !== undefined) return
    this.#waiters.add(waiter)
    await this.#stopping
    if (this.#waiters.size > 0 && !this.#task.started) await this.#task.start()
  }

  remove(waiter: Waiter): void {
    this.#waiters.delete(waiter)
    if (this.#waiters.size > 0 || !this.#task.started || this.#stopping !== undefined) return
    this.#stopping = this.#task.stop().finally(() => {
      this.#stopping = undefined
    })
  }

  look(): void {
    this.#task.wake()
  }

  async #round(): Promise<void> {
    const waiters = [...this.#waiters]
    if (waiters.length === 0) return
    const looks = await this.#store.look(
      waiters.map(({ projection, token: { positions } }) => ({ projection, positions })),
    )
    for (const [i, waiter] of waiters.entries()) waiter.judge(looks[i]!)
  }
}

const pollers = new WeakMap<ProjectionStore, Poller>()

function pollerOf(store: ProjectionStore, clock: Clock): Poller {
  const known = pollers.get(store) ?? new Poller(store, clock)
  pollers.set(store, known)
  return known
}

/** The view of a projection that another process runs. `store` is the database it is in. */
export function viewOf(
  store: Pick<ProjectionDatabase, 'projections' | 'leadership'>,
  projection: ProjectionId,
  options: { clock?: Clock } = {},
): View {
  return new View(store, projection, options)
}

/** Which log: by its table, and which of that name, where both sides know. */
interface Which {
  readonly log: string
  readonly incarnation?: string | undefined
}

function isForeign(token: Which, ours: Which): boolean {
  if (token.log !== ours.log) return true
  return token.incarnation !== undefined && ours.incarnation !== undefined && token.incarnation !== ours.incarnation
}

function foreign(projection: ProjectionId, ours: Which, theirs: Which): WaybillError {
  const same = ours.log === theirs.log ? ' of another database, or made before it was created anew' : ''
  return new WaybillError(
    'FOREIGN_TOKEN',
    `the token is of the log ${describe(theirs.log)}${same}, and ${idText(projection)} follows ${describe(ours.log)}: positions of two logs are never compared`,
  )
}
