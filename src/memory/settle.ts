import { errorSummary, type Settlement } from '../core/index.ts'
import type { Row } from './row.ts'
import type { Table } from './table.ts'

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
      table.become(row, 'retrying', table.now() + settlement.after)
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
