import { describe, type Message, nearest, WaybillError } from '../core/index.ts'
import type { OutboxAdmin, OutboxStats } from './admin.ts'
import type { OutboxReader } from './reader.ts'

/** What waits for one destination: an outbox of its own, with its own order, attempts and dead events. */
export interface Branch extends OutboxReader {
  readonly admin: OutboxAdmin
}

/**
 * An outbox from which events go to several destinations. Each destination has a branch, in the same store, so that what
 * becomes of an event at one of them is written down apart from what becomes of it at the others.
 */
export interface BranchingOutbox extends OutboxReader {
  /** The branch of a destination. Throws where none of that name was declared. */
  branch(name: string): Branch
  /**
   * Writes events into branches, by their names, in the order given and all in one transaction. What a branch has
   * already, published or not, it leaves as it is: doing it twice is harmless.
   */
  distribute(events: ReadonlyMap<string, readonly Message[]>): Promise<void>
  /** All branches there are in the store, declared or not, with how many events wait in each or are dead there. */
  branches(): Promise<readonly { readonly name: string; readonly unpublished: number }[]>
}

export function isBranching(outbox: unknown): outbox is BranchingOutbox {
  const { branch, distribute, branches } = (outbox ?? {}) as Partial<BranchingOutbox>
  return [branch, distribute, branches].every((method) => typeof method === 'function')
}

const NAME = /^[a-z][a-z0-9_]*$/

/** The names of branches, as a store was given them: they become parts of tables' names. */
export function branchNames(where: string, given: readonly string[] = []): readonly string[] {
  if (!Array.isArray(given)) {
    throw new WaybillError('INVALID_OPTION', `${where}: ${describe(given)} is not a list of names`)
  }
  given.forEach((name, i) => {
    if (typeof name !== 'string' || !NAME.test(name) || given.indexOf(name) !== i) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: ${describe(name)} is not allowed; give each destination a name of its own, of small letters, digits and underscores`,
      )
    }
  })
  return [...given]
}

export function unpublished(states: OutboxStats['states']): number {
  return Object.entries(states).reduce((sum, [state, { count }]) => (state === 'published' ? sum : sum + count), 0)
}

export function noBranch(outbox: string, name: string, known: readonly string[]): WaybillError {
  const near = nearest(name, known)
  const hint = near === undefined ? '.' : `; did you mean ${describe(near)}?`
  return new WaybillError(
    'NO_BRANCH',
    `${outbox} has no branch ${describe(name)}${hint} Declared: ${known.join(', ') || 'none'}. Name it in the outbox's \`branches\`, and run migrate()`,
  )
}
