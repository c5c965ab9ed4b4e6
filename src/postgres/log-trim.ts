import { WaybillError } from '../core/index.ts'
import { limited } from '../drivers/sql/connection.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import type { Database } from '../drivers/sql/sql.ts'
import type { Audit } from '../outbox/admin.ts'
import { checkAudit } from '../outbox/admin-checks.ts'
import type { CheckpointStore, LogHead, Position } from '../projection/port.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** Rows of one statement: nobody is to wait for it. */
const BATCH = 5000

/** What a log that is to be trimmed must be asked. */
export interface Trim {
  readonly names: OutboxNames
  readonly head: LogHead
  readonly audit: Audit
  /** Wherever projections of this log keep how far they have come. */
  readonly checkpoints: readonly Pick<CheckpointStore, 'list'>[]
}

/**
 * Removes the events of a log before a position, from outbox and archive; returns how many. Refuses what a projection has
 * not read, and what is not published.
 *
 * That it is trimmed is written first, with the audit; the events then go in small batches. A crash in between leaves some
 * of them, which nobody reads any more, and which the next call removes. A projection that is made meanwhile finds the log
 * trimmed.
 */
export async function trimLog(db: Database, before: Position, trim: Trim): Promise<number> {
  const { names, head, audit, checkpoints } = trim
  const table = names.table.text
  checkAudit('trimLog', audit)
  if (typeof before !== 'bigint' || before < 1n || before > head.position + 1n) {
    const text = `give a bigint from 1n to ${head.position + 1n}, behind the last event of ${table}`
    throw new WaybillError('INVALID_OPTION', `trimLog: ${String(before)} is no position in the log; ${text}`)
  }
  const upTo = before - 1n
  for (const store of checkpoints) {
    for (const { name, version, position } of await store.list(table)) {
      if (position >= upTo) continue
      const advice = 'let it catch up, or retire it'
      const text = `trimLog: projection ${name} version ${version} has read ${table} up to ${position} only; ${advice}`
      throw new WaybillError('NOT_READ', text)
    }
  }
  await db.transaction(async (tx) => {
    const on = limited(sqlOf(tx), db.within)
    const [row] = (await on.query(names.fill(sql['log-trim']), [String(upTo)])).rows
    if (Number(row!['pending']) > 0) {
      const text = `trimLog: ${row!['pending']} events of ${table} before ${before} are not published, or dead`
      throw new WaybillError('NOT_EMPTY', `${text}; let them be published, or discard them`)
    }
    const { by, note } = audit
    const line = ['trim', by, note, JSON.stringify({ before: String(before) }), '0']
    await on.query(names.fill(sql['admin-audit']), line)
  })
  const remove = names.fill(sql['log-remove'])
  for (let removed = 0; ; ) {
    const { rows } = await db.query(remove, [String(upTo), String(BATCH)])
    const count = Number(rows[0]!['count'])
    removed += count
    if (count === 0) return removed
  }
}
