import type { RoutingRelay } from '../../src/index.ts'

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
