import { appendFileSync } from 'node:fs'
import { join } from 'node:path'
import { type BranchingOutbox, OK } from '../../src/adapter.ts'
import { type Publisher, RoutingRelay } from '../../src/index.ts'

export const BRANCHES = ['warehouse', 'audit'] as const

/** Orders go to both, invoices to the audit only. */
export const ROUTES = { 'order.*': ['warehouse', 'audit'], 'invoice.#': 'audit' }

/** Rounds until one moves nothing and sends nothing. */
export async function untilEmpty(relay: RoutingRelay, most = 200): Promise<void> {
  for (let round = 0; round < most; round++) {
    const { moved, sent } = await relay.runOnce()
    if (moved.taken + Object.values(sent).reduce((sum, { taken }) => sum + taken, 0) === 0) return
  }
  throw new Error(`still not empty after ${most} rounds`)
}

/** A relay whose destinations append a line to a file of their own before they answer. */
export function filing(
  from: BranchingOutbox,
  folder: string,
  wrap: (publisher: Publisher, name: string) => Publisher = (publisher) => publisher,
): RoutingRelay {
  const destination = (name: string): Publisher => ({
    name,
    features: {},
    async publish(messages) {
      appendFileSync(join(folder, name), messages.map(({ id }) => `${id}\n`).join(''))
      return messages.map(() => OK)
    },
  })
  const to = Object.fromEntries(BRANCHES.map((name) => [name, wrap(destination(name), name)]))
  const quick = { lease: '1s', poll: '20ms', maxPoll: '50ms', batch: 20, maxBatch: 20 } as const
  return new RoutingRelay({ from, to, routes: ROUTES, ...quick })
}
