import { errorSummary } from '../core/index.ts'
import type { Settlement } from '../flow/index.ts'
import type { Row } from './row.ts'
import type { Table } from './table.ts'

/** The longest delay. What is longer has no date. */
const MAX_DELAY = 100 * 365 * 86_400_000

/** What a settlement makes of a row. */
export function settleRow(table: Table, row: Row, settlement: Settlement, deletes: boolean): void {
  switch (settlement.kind) {
    case 'done':
      row.lastError = undefined
      row.publishedAt = table.now()
      table.become(row, 'published')
      if (deletes) table.remove(row)
      break
    case 'retry':
      if (settlement.charged) row.attempts++
      row.lastError = errorSummary(settlement.error)
      table.become(row, 'retrying', table.now() + Math.min(settlement.after, MAX_DELAY))
      break
    case 'dead':
      row.attempts++
      row.lastError = settlement.reason
      table.become(row, 'dead')
      break
    case 'release':
      table.become(row, 'ready')
  }
}
