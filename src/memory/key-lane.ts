import type { State } from '../outbox/admin.ts'
import { Heap } from './heap.ts'
import type { Row } from './row.ts'

export type Blocker = 'retrying' | 'dead' | 'held'

/** Which events hold back later ones of their key, by what becomes of a key whose event is dead. */
export const BLOCKERS: Record<'block' | 'continue', readonly Blocker[]> = {
  block: ['retrying', 'dead', 'held'],
  continue: ['retrying', 'held'],
}

/** Of one key: the events that hold back later ones, and those that are held back. */
export class KeyLane {
  readonly #rows: Record<Blocker, Heap<Row>> = { retrying: rows('retrying'), dead: rows('dead'), held: rows('held') }

  add(row: Row, state: Blocker): void {
    this.#rows[state].push(row)
  }

  blocks(row: Row, blockers: readonly Blocker[]): boolean {
    return blockers.some((state) => (this.#rows[state].peek()?.sequence ?? Number.POSITIVE_INFINITY) < row.sequence)
  }

  nextHeld(): Row | undefined {
    return this.#rows.held.pop()
  }

  get empty(): boolean {
    return Object.values(this.#rows).every((heap) => heap.peek() === undefined)
  }
}

function rows(state: State): Heap<Row> {
  return new Heap<Row>(
    (row) => row.sequence,
    (row) => row.state === state && !row.removed,
  )
}
