import { type TableName, tableName } from '../drivers/sql/identifiers.ts'
import { MAX_KEY_BYTES } from '../store/enqueue.ts'
import { SCAN_SQL, SCANNED_SQL, STORED_SQL } from './columns.ts'
import { readyAndWake, type Waking, wakeSql, wakingSql } from './wake.ts'

/** What `deadKey` makes of SQL: which states hold back later events of their key. */
const BLOCKERS = { block: `'retrying', 'dead', 'held'`, continue: `'retrying', 'held'` }
/** The same without those that only wait themselves. */
const STOPPERS = { block: `'retrying', 'dead'`, continue: `'retrying'` }

/** What waits for a time. Each state is a range of its index by itself. */
const TIMED_STATES = `(VALUES ('scheduled'), ('retrying'), ('leased')) AS timed (name)`

export interface FillOptions {
  readonly deadKey?: 'block' | 'continue'
  readonly shard?: number
  readonly shards?: number
  /** What the enqueue statement does about an idle relay. */
  readonly wake?: Waking
}

/** The tables of one outbox, and SQL with their names filled in. Names are validated and quoted in one place. */
export class OutboxNames {
  readonly table: TableName
  /** It is a log: an event has one number for good, which travels with it. */
  readonly log: boolean

  constructor(table: string, log = false) {
    this.table = tableName(table, 'outbox')
    this.log = log
  }

  fill(sql: string, options: FillOptions = {}): string {
    const { table } = this
    const { deadKey = 'block', shard = 0, shards = 1, wake = 'off' } = options
    const regclass = `'${table.sql}'::regclass`
    const values: Record<string, string> = {
      outbox: table.sql,
      columns: SCAN_SQL,
      timed: TIMED_STATES,
      log_columns: SCANNED_SQL,
      log_here: `(${logHere(table)})`,
      name: table.text,
      stored: STORED_SQL,
      blockers: BLOCKERS[deadKey],
      stoppers: STOPPERS[deadKey],
      shard: shards === 1 ? '' : ` AND ${shardOf('event')} % ${shards} = ${shard}`,
      wake: wakeSql(wake, regclass),
      woken: wake === 'off' ? '' : ', (SELECT count(*) FROM wake) AS woken',
      waking: wakingSql(wake, regclass),
      longest_key: String(MAX_KEY_BYTES),
      wake_function: table.companion('wake'),
      ready_and_wake: readyAndWake(wake, regclass),
      tenant_index: table.companion('tenant'),
      timer_index: table.companion('timer'),
      timed_index: table.companion('timed'),
    }
    for (const companion of ['terms', 'members', 'audit', 'state', 'archive', 'ids', 'log']) {
      values[companion] = table.companion(companion)
    }
    return sql.replace(/\{\{(\w+)\}\}/g, (_, name: string) => {
      const value = values[name]
      if (value !== undefined) return value
      if (name.startsWith('outbox_')) return table.object(name.slice('outbox_'.length))
      throw new Error(`unknown placeholder {{${name}}}`)
    })
  }
}

/**
 * The log as a whole, and the mark of the server: it changes whenever what was seen of running transactions may have become
 * untrue. A restart or a failover starts another postmaster; a crash of one backend ends with a checkpoint; and other
 * checkpoints are rare. A standby does not show who writes.
 */
function logHere(table: TableName): string {
  return `SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE EXTRACT(EPOCH FROM pg_postmaster_start_time())::text || ' '
    || (SELECT checkpoint_lsn::text FROM pg_control_checkpoint()) END AS mark, trimmed::text AS trimmed,
    incarnation::text AS incarnation FROM ${table.companion('log')}`
}

/** Events of one key are always in the same shard; those without a key are spread. */
function shardOf(alias: string): string {
  return `(hashtextextended(COALESCE(${alias}.key, ${alias}.event_id::text), 0) & 2147483647)`
}
