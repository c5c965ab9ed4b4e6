import { type Clock, classify, describe, WaybillError } from '../core/index.ts'
import { SharedLook } from '../flow/shared-look.ts'
import type { SagaDatabase, SagaEnd, SagaStore } from './port.ts'
import { isOver, type SagaState } from './state.ts'

/** Between two looks at sagas that run elsewhere, in milliseconds: as long as the one who came last has waited. */
export const LOOK = { min: 20, max: 1000 }

/** One who waits here until a saga ends or is held. */
export class SagaWaiter {
  readonly id: string
  readonly since: number
  readonly settled: Promise<void>
  /** `error`: what a step was refused with, where that is known. */
  ending: { readonly state: SagaState; readonly error: unknown } | undefined
  /** It cannot be waited for. */
  failure: { readonly error: unknown } | undefined
  readonly #type: string
  #resolve!: () => void

  constructor(id: string, type: string, since: number) {
    this.id = id
    this.#type = type
    this.since = since
    this.settled = new Promise((resolve) => {
      this.#resolve = resolve
    })
  }

  get isSettled(): boolean {
    return this.ending !== undefined || this.failure !== undefined
  }

  end(state: SagaState, error: unknown): void {
    this.ending ??= { state, error }
    this.#resolve()
  }

  fail(error: unknown): void {
    this.failure ??= { error }
    this.#resolve()
  }

  /** What a look has found. */
  judge(found: SagaEnd | undefined): void {
    if (found?.type !== this.#type) this.fail(unknown(this.id))
    else if (found.saga !== undefined) this.end(found.saga, undefined)
  }
}

/**
 * Who waits here for sagas of one store: notified by whoever writes the end in this process, a runner, a reply or a person.
 * For the ends that other processes write there is one look at all of them.
 */
export class Endings {
  readonly #waiting = new Map<string, Set<SagaWaiter>>()
  readonly #store: Pick<SagaStore, 'name' | 'ended'>
  #look: SharedLook<SagaWaiter> | undefined

  constructor(store: Pick<SagaStore, 'name' | 'ended'>) {
    this.#store = store
  }

  listen(waiter: SagaWaiter): void {
    const waiting = this.#waiting.get(waiter.id) ?? new Set()
    this.#waiting.set(waiter.id, waiting.add(waiter))
  }

  forget(waiter: SagaWaiter): void {
    this.#look?.remove(waiter)
    const waiting = this.#waiting.get(waiter.id)
    waiting?.delete(waiter)
    if (waiting?.size === 0) this.#waiting.delete(waiter.id)
  }

  /** It is committed. Of no consequence unless it has ended or is held. */
  report(state: SagaState, error?: unknown): void {
    if (!isOver(state) && state.held === undefined) return
    for (const waiter of this.#waiting.get(state.id) ?? []) waiter.end(state, error)
  }

  /**
   * Looks for it now, and then again and again until it is forgotten. A store that is away for a moment ends no wait: the
   * saga goes on, and so does its caller.
   */
  async look(waiter: SagaWaiter, clock: Clock): Promise<void> {
    this.#look ??= new SharedLook({
      name: `${this.#store.name}: those who wait`,
      look: (waiters) => this.#judge(waiters),
      pause: (waiters) => pauseOf(clock.monotonic() - Math.max(...waiters.map(({ since }) => since))),
      backoff: LOOK,
      clock,
    })
    await this.#look.once(waiter).catch(() => {})
    if (!waiter.isSettled && this.#waiting.get(waiter.id)?.has(waiter)) await this.#look.add(waiter)
  }

  async #judge(waiters: readonly SagaWaiter[]): Promise<void> {
    try {
      const found = await this.#store.ended([...new Set(waiters.map(({ id }) => id))])
      const byId = new Map(found.map((one) => [one.id, one]))
      for (const waiter of waiters) waiter.judge(byId.get(waiter.id))
    } catch (error) {
      if (classify(error) === 'permanent') for (const waiter of waiters) waiter.fail(error)
      throw error
    }
  }
}

function pauseOf(waited: number): number {
  return Math.min(Math.max(waited, LOOK.min), LOOK.max)
}

export function unknown(id: string): WaybillError {
  return new WaybillError(
    'SAGA_UNKNOWN',
    `there is no saga ${describe(id)}, or it ended so long ago that it was removed`,
  )
}

/** Where the sagas of a database are. `who` is for the error. */
export function storeOf<Tx>(db: SagaDatabase<Tx>, who: string): SagaStore<Tx> {
  const store: SagaStore<Tx> | undefined = db?.sagas
  if (typeof store?.claim === 'function') return store
  const text = `${who}: store is ${describe(db)}; give postgres({ pool, sagas: true })`
  throw new WaybillError('INVALID_OPTION', text)
}

const known = new WeakMap<object, Endings>()

export function endingsOf(store: Pick<SagaStore, 'name' | 'ended'>): Endings {
  const endings = known.get(store) ?? new Endings(store)
  known.set(store, endings)
  return endings
}
