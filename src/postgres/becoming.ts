import { errorSummary, type Settlement } from '../core/index.ts'
import type { State } from '../outbox/admin.ts'
import type { OutboxDelivery } from './row.ts'

/** What a settlement makes of a row. */
export interface Becoming {
  readonly id: string
  readonly becomes: State
  readonly attempts: number
  readonly after?: number
  readonly error?: string
}

export function becoming(delivery: OutboxDelivery, settlement: Settlement): Becoming {
  const { eventId: id, attempts } = delivery
  switch (settlement.kind) {
    case 'done':
      return { id, becomes: 'published', attempts }
    case 'retry': {
      const { after, error, charged } = settlement
      return { id, becomes: 'retrying', attempts: attempts + (charged ? 1 : 0), after, error: errorSummary(error) }
    }
    case 'dead':
      return { id, becomes: 'dead', attempts: attempts + 1, error: settlement.reason }
    case 'release':
      return { id, becomes: 'ready', attempts }
  }
}
