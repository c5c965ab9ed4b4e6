import { Unavailable, WaybillError, warnOnce } from '../core/index.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** What makes a relay blind or its order wrong, asked once when it opens the outbox: neither shows later as an error. */
export async function checkTables(on: Sql, names: OutboxNames, deletes: boolean): Promise<{ numbersInOrder: boolean }> {
  const secured = await on.query(names.fill(sql['table-checks']), [String(deletes)])
  for (const row of secured.rows) checkPolicies(row as unknown as Secured)
  const [sequence] = (await on.query(names.fill(sql['sequence-check']))).rows
  if (sequence === undefined) return { numbersInOrder: true }
  const { cache, step, cycles } = sequence
  if (Number(cache) <= 1 && Number(step) > 0 && cycles !== true) return { numbersInOrder: true }
  const text = names.table.text
  warnOnce(
    'relay',
    `${text}: its sequence is set to CACHE ${cache}, INCREMENT ${step}${cycles === true ? ', CYCLE' : ''}: numbers are not drawn in the order in which events are written, so events of one key can be sent in another order, and each scan begins at the first row; ALTER SEQUENCE … CACHE 1 INCREMENT 1 NO CYCLE`,
  )
  return { numbersInOrder: false }
}

interface Secured {
  readonly name: string
  readonly sees: boolean
  readonly changes: boolean
  readonly removes: boolean
}

function checkPolicies({ name, sees, changes, removes }: Secured): void {
  const missing = [sees ? '' : 'SELECT', changes ? '' : 'UPDATE', removes ? '' : 'DELETE'].filter(Boolean)
  if (missing.length > 0) {
    throw new WaybillError(
      'ROW_SECURITY',
      `${name}: row-level security applies to the relay's role, and no policy gives it ${missing.join(' and ')}; its rows would be passed over in silence; add a policy, or let the role bypass row-level security`,
    )
  }
  warnOnce(
    'relay',
    `${name}: row-level security applies to the relay's role; events that its policies hide are never sent`,
  )
}

/** A standby may become the primary, and is waited for. A session that is set read-only stays so. */
export async function refuseReadOnly(db: Database, table: string): Promise<void> {
  const asked = `SELECT current_setting('transaction_read_only') AS read_only, pg_is_in_recovery() AS standby`
  const [row] = (await db.query(asked)).rows
  if (row?.['standby'] === true) throw new Unavailable('this is a standby, and a relay needs the primary')
  if (row?.['read_only'] !== 'on') return
  const text = `default_transaction_read_only is on for this role or database, and ${table} must be written`
  throw new WaybillError('READ_ONLY', text)
}
