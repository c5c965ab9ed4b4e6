import type { SagaStore } from './port.ts'
import { isOver, type SagaState } from './state.ts'

/** Called when a saga ends or is held in this process; `error` is what a step was refused with. */
export type Ending = (state: SagaState, error: unknown) => void

/** Who waits here for sagas of one store: notified by whoever writes the end, a runner, a reply or a person. */
export class Endings {
  readonly #waiting = new Map<string, Set<Ending>>()

  /** Calls `ending` once this saga ends or is held; returns the way to forget it. */
  listen(id: string, ending: Ending): () => void {
    const waiting = this.#waiting.get(id) ?? new Set()
    this.#waiting.set(id, waiting.add(ending))
    return () => {
      waiting.delete(ending)
      if (waiting.size === 0 && this.#waiting.get(id) === waiting) this.#waiting.delete(id)
    }
  }

  /** It is committed. Of no consequence unless it has ended or is held. */
  tell(state: SagaState, error?: unknown): void {
    if (!isOver(state) && state.held === undefined) return
    for (const ending of this.#waiting.get(state.id) ?? []) ending(state, error)
  }
}

const known = new WeakMap<object, Endings>()

export function endingsOf(store: Pick<SagaStore, 'name'>): Endings {
  const endings = known.get(store) ?? new Endings()
  known.set(store, endings)
  return endings
}
