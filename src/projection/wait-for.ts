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
import { checkId, checkStore, idText } from './definition.ts'
import type { LogToken, Position, ProjectionId } from './port.ts'
import type { ProjectionDatabase } from './store.ts'
import { BUILDING, foreign, isForeign, REACHED, ViewWaiter, type WaitAnswer, waitersOf } from './waiters.ts'

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
  /** Why it cannot go on. */
  readonly problem: string | undefined
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
    checkStore('viewOf', db)
    checkId('viewOf', projection)
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
    const waiter = new ViewWaiter(this.projection, token)
    const forget = this.#here?.watch(() => {
      if (this.#appliedHere(token)) waiter.settle(REACHED)
    })
    const waiters = waitersOf(this.#db.projections)
    try {
      const looked = waiters.look(waiter, timeout > 0, this.#clock)
      const over = timeout > 0 ? looked.then(() => waiter.settled) : looked
      await withDeadline(over, timeout || LAST_LOOK, this.#clock, () => {}, options.signal)
    } finally {
      forget?.()
      waiters.forget(waiter)
    }
    if (waiter.failure !== undefined) throw waiter.failure
    return waiter.neverRan ? this.#neverRan(waiter.answer!) : (waiter.answer ?? this.#late(waiter))
  }

  /** It has no checkpoint: somebody may just have begun. */
  async #neverRan(unknown: WaitAnswer): Promise<WaitAnswer> {
    const problem = this.#here?.problem
    if (problem !== undefined) return { answer: 'stalled', reason: problem }
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

  /** It is not there in time. Why not, as far as anybody knows? A database that does not answer keeps nobody any longer. */
  #late(waiter: ViewWaiter): Promise<WaitAnswer> {
    const unasked = (why: string): WaitAnswer => ({
      answer: 'unknown',
      reason: `its database cannot be asked: ${why}`,
    })
    const asked = this.#whyLate(waiter).catch((error) => {
      if (error === waiter.failure) throw error
      return unasked(errorSummary(error))
    })
    return withDeadline(asked, LAST_LOOK, this.#clock, () => unasked(`no answer within ${LAST_LOOK} ms`))
  }

  async #whyLate(waiter: ViewWaiter): Promise<WaitAnswer> {
    const [look] = await this.#db.projections.look([{ projection: this.projection, positions: waiter.token.positions }])
    waiter.judge(look!)
    if (waiter.failure !== undefined) throw waiter.failure
    if (waiter.neverRan) return this.#neverRan(waiter.answer!)
    if (waiter.answer !== undefined) return waiter.answer
    const { problem } = look!.checkpoint!
    if (problem !== undefined) return { answer: 'stalled', reason: problem }
    const owners = await this.#owners()
    return owners.length === 0 ? { answer: 'stalled', reason: 'nobody runs this projection' } : { answer: 'timeout' }
  }
}

/** How long the look at the end of the wait may take, and the only one of who does not wait, in milliseconds. */
const LAST_LOOK = 1000

/** The view of a projection that another process runs. `store` is the database it is in. */
export function viewOf(
  store: Pick<ProjectionDatabase, 'projections' | 'leadership'>,
  projection: ProjectionId,
  options: { clock?: Clock } = {},
): View {
  return new View(store, projection, options)
}
