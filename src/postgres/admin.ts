import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  isUuid,
  type RawMessage,
  WaybillError,
} from '../core/index.ts'
import { ANSWER_WITHIN, limited } from '../drivers/sql/connection.ts'
import { sqlOf } from '../drivers/sql/database.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import type {
  AdminAction,
  Audit,
  AuditEntry,
  OutboxAdmin,
  OutboxEntry,
  OutboxFilter,
  OutboxStats,
  Page,
  PendingFilter,
  Preview,
  State,
  StatsOptions,
} from '../outbox/admin.ts'
import {
  auditOr,
  checkAction,
  checkAudit,
  checkWindow,
  expectedOf,
  limitOf,
  pageOf,
  refuseUnexpected,
  replayOf,
  SHOWN,
  statesOf,
} from '../outbox/admin-checks.ts'
import { auditOf, entryOf, filterValues, placeOf, readCursor, type StateSqlOptions, stateSql } from './admin-filter.ts'
import { replay } from './admin-replay.ts'
import { countExactly, type IndexCount, lookAt, type StatsLook, statsOf } from './admin-stats.ts'
import { type ArchiveTarget, Cleaning } from './cleaner.ts'
import type { StoredRow } from './columns.ts'
import { explained } from './errors.ts'
import { recorded } from './migrate.ts'
import type { OutboxNames } from './names.ts'
import { messageOfStored } from './row.ts'
import { sql } from './sql.generated.ts'
import { TimedCounts } from './timed-counts.ts'

/** Limits of admin actions. */
export interface PostgresAdminOptions {
  /** What `clean` keeps when no retention is given. Default 7 days. */
  retention?: Duration
  /** Where cleaned events are kept. Default: nowhere. */
  archive?: ArchiveTarget
}

/** What a replay takes, and under which ids. */
export interface ReplayOptions {
  asNew?: boolean
  limit?: number
  /** Also what is in the archive of this outbox. Default false: files are read whole, and a large archive takes its time. */
  archive?: boolean
}

const COUNTED_IN_PREVIEW = 100_000
const SAMPLE = 10
/** A look that takes longer disturbs others; an action may take its time. Milliseconds: the server ends it then. */
const LOOK_WITHIN = 30_000
const ACT_WITHIN = 600_000
/** How much later it is given up here: the server may be gone, and TCP has not noticed. */
const SPARE = 5_000

const LOOKING = (table: string) => `looking through ${table} takes too long; narrow the filter, by state first`
const CLEANING = (table: string) =>
  `cleaning ${table} takes longer than this role's statement_timeout; raise it for the role, or give a smaller limit`

/** What people do with an outbox in a PostgreSQL table. */
export class PostgresOutboxAdmin implements OutboxAdmin {
  readonly name: string
  readonly #db: Database
  readonly #names: OutboxNames
  readonly #archive: ArchiveTarget | undefined
  readonly #cleaning: Cleaning
  readonly #counts: TimedCounts<IndexCount>
  #layout: { readonly tenants: boolean; readonly log: boolean } | undefined

  constructor(db: Database, names: OutboxNames, options: PostgresAdminOptions = {}, clock?: Clock) {
    checkOptions('outbox admin', options, { retention: true, archive: true })
    this.name = names.table.text
    this.#db = db
    this.#names = names
    this.#archive = options.archive
    this.#cleaning = new Cleaning(db, names, options)
    this.#counts = new TimedCounts(clock)
  }

  list(filter: OutboxFilter = {}, page: Page = {}): Promise<readonly OutboxEntry[]> {
    const values = filterValues('list', filter)
    const { limit, after } = pageOf('list', page)
    const from = after === undefined ? undefined : readCursor(after)
    const states = statesOf('list', filter)
    return this.#look((on) => this.#entries(on, states, values, limit, from))
  }

  async show(eventId: string): Promise<{ readonly entry: OutboxEntry; readonly message: RawMessage } | undefined> {
    if (!isUuid(eventId)) {
      throw new WaybillError('INVALID_OPTION', `show: ${describe(eventId)} is not an event id, which is a UUID`)
    }
    const text = this.#names.fill(sql['admin-show'])
    const row = await this.#look(async (on) => (await on.query(text, [eventId])).rows[0])
    if (row === undefined) return undefined
    return {
      entry: entryOf({ ...row, place: placeOf(row) }),
      message: messageOfStored(row as unknown as StoredRow),
    }
  }

  preview(action: AdminAction, filter: OutboxFilter): Promise<Preview> {
    const touched = checkAction(action)
    const values = filterValues(action, filter)
    const states = statesOf(action, filter, touched)
    const free = action === 'discard-pending'
    return this.#look(async (on) => {
      let count = 0
      for (const state of states) {
        const text = await this.#stateSql(on, 'admin-count', state, values, { free })
        count += await counted(on, text, values, COUNTED_IN_PREVIEW + 1 - count)
        if (count > COUNTED_IN_PREVIEW) break
      }
      const exact = count <= COUNTED_IN_PREVIEW
      const sample = await this.#entries(on, states, values, SAMPLE, undefined, free)
      return { count: Math.min(count, COUNTED_IN_PREVIEW), exact, sample }
    })
  }

  rearm(filter: OutboxFilter, audit?: Audit, options: { limit?: number } = {}): Promise<number> {
    const limit = limitOf('rearm', options)
    return this.#act('rearm', filter, auditOr('rearm', audit), async (on, values) =>
      counted(on, await this.#stateSql(on, 'admin-rearm', 'dead', values), values, limit),
    )
  }

  discardDead(filter: OutboxFilter, audit: Audit, options: { limit?: number } = {}): Promise<number> {
    const limit = limitOf('discardDead', options)
    checkAudit('discardDead', audit)
    return this.#act('discard-dead', filter, audit, (on, values) => this.#discard(on, 'dead', values, limit))
  }

  discardPending(filter: PendingFilter, audit: Audit, options: { expected: number }): Promise<number> {
    checkWindow(filter)
    checkAudit('discardPending', audit)
    const expected = expectedOf(options)
    const states = statesOf('discard-pending', filter, 'discard-pending')
    return this.#act('discard-pending', filter, audit, async (on, values) => {
      let count = 0
      for (const state of states) count += await this.#discard(on, state, values, expected + 1 - count)
      refuseUnexpected(count, expected)
      return count
    })
  }

  /** `archive`: also what the cleaner has moved to the archive of this outbox, each event once. */
  replay(filter: OutboxFilter, audit?: Audit, options: ReplayOptions = {}): Promise<number> {
    const { archive = false, ...rest } = options
    const { asNew, limit } = replayOf(rest)
    const what = { asNew, limit, filter, archive: archive ? (this.#archive ?? 'none') : undefined }
    return this.#act(
      'replay',
      filter,
      auditOr('replay', audit),
      async (on, values) => {
        const count = await replay(on, this.#names, values, what)
        if (count <= limit) return count
        const advice = 'nothing was sent; narrow the filter, or give a larger limit'
        throw new WaybillError('TOO_MANY', `replay: more than ${limit} events match; ${advice}`)
      },
      { ...(asNew ? { asNew } : {}), ...(archive ? { archive } : {}) },
    )
  }

  audits(page: Page = {}): Promise<readonly AuditEntry[]> {
    const { limit, after } = pageOf('audits', page)
    if (after !== undefined && !/^\d{1,18}$/.test(after)) {
      throw new WaybillError('INVALID_OPTION', `audits: after: ${describe(after)} is not the id of a line`)
    }
    return this.#look(async (on) => {
      const { rows } = await on.query(this.#names.fill(sql['admin-audits']), [String(limit), after ?? null])
      return rows.map(auditOf)
    })
  }

  async stats(options: StatsOptions = {}): Promise<OutboxStats> {
    checkOptions('stats', options, { exactUpTo: true, published: true, within: true })
    const { exactUpTo = 0, published = true, within } = options
    const until = within === undefined ? undefined : this.#counts.clock.monotonic() + within
    let look: StatsLook | undefined
    try {
      await this.#look(async (on) => {
        look = await lookAt(on, this.#names, published)
        await countExactly(on, this.#names, look, this.#counts, { exactUpTo, until })
      })
    } catch (error) {
      // What could not be counted in time is an estimate; the rest is known.
      if (look === undefined || (error as { code?: unknown } | null)?.code !== 'TOO_SLOW') throw error
    }
    return statsOf(look!)
  }

  clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    return this.#explained(() => this.#cleaning.clean(options), CLEANING)
  }

  /** Creates the partitions that will be needed and drops those that are no longer: before each round of a cleaner. */
  maintain(options: { retention?: number } = {}): Promise<number> {
    return this.#explained(() => this.#cleaning.maintain(options), CLEANING)
  }

  async #entries(
    on: Sql,
    states: readonly State[],
    values: readonly (string | null)[],
    limit: number,
    from?: { state: State; place: readonly string[] },
    free = false,
  ): Promise<OutboxEntry[]> {
    const entries: OutboxEntry[] = []
    const first = from === undefined ? 0 : SHOWN.indexOf(from.state)
    for (const state of states) {
      if (SHOWN.indexOf(state) < first) continue
      const place = state === from?.state ? from.place : []
      const text = await this.#stateSql(on, 'admin-list', state, values, { after: place.length > 0, free })
      const { rows } = await on.query(text, [...values, String(limit - entries.length), ...place])
      entries.push(...rows.map(entryOf))
      if (entries.length >= limit) break
    }
    return entries
  }

  async #discard(on: Sql, state: State, values: readonly (string | null)[], limit: number): Promise<number> {
    const { log } = await this.#known(on)
    const file = log ? 'admin-discard-log' : 'admin-discard'
    return counted(on, await this.#stateSql(on, file, state, values, { free: true }), values, limit)
  }

  /** By the index of the state, or of one tenant where there is such an index. */
  async #stateSql(
    on: Sql,
    name: 'admin-list' | 'admin-count' | 'admin-rearm' | 'admin-discard' | 'admin-discard-log',
    state: State,
    [, tenant]: readonly (string | null)[],
    options: StateSqlOptions = {},
  ): Promise<string> {
    const byTenant = typeof tenant === 'string' && (await this.#known(on)).tenants
    return this.#names.fill(stateSql(sql[name], state, { ...options, byTenant }))
  }

  /** What was chosen stays; what was not may be by the next time. A log is one with or without the option. */
  async #known(on: Sql): Promise<{ readonly tenants: boolean; readonly log: boolean }> {
    if (this.#layout?.tenants && this.#layout.log) return this.#layout
    const { options } = await recorded(on, this.#names.table)
    this.#layout = { tenants: options['tenants'] === true, log: options['log'] === true }
    return this.#layout
  }

  /** What is done and its line in the audit, or neither. */
  async #act(
    action: AdminAction,
    filter: OutboxFilter,
    audit: Audit,
    fn: (on: Sql, values: readonly (string | null)[]) => Promise<number>,
    more: Record<string, unknown> = {},
  ): Promise<number> {
    const values = filterValues(action, filter)
    statesOf(action, filter, action)
    return this.#within(ACT_WITHIN, async (on) => {
      const count = await fn(on, values)
      const { by, note } = audit
      const line = [action, by, note, JSON.stringify({ ...filter, ...more }), String(count)]
      await on.query(this.#names.fill(sql['admin-audit']), line)
      return count
    })
  }

  #look<T>(fn: (on: Sql) => Promise<T>): Promise<T> {
    return this.#within(LOOK_WITHIN, fn)
  }

  #within<T>(ms: number, fn: (on: Sql) => Promise<T>): Promise<T> {
    return this.#explained(() =>
      this.#db.transaction(async (tx) => {
        await limited(sqlOf(tx), ANSWER_WITHIN).query(`SET LOCAL statement_timeout = ${ms}`)
        return fn(limited(sqlOf(tx), ms + SPARE))
      }),
    )
  }

  async #explained<T>(fn: () => Promise<T>, slow = LOOKING): Promise<T> {
    try {
      return await fn()
    } catch (error) {
      if ((error as { code?: unknown } | null)?.code !== '57014') throw explained(error, `table ${this.name}`)
      throw new WaybillError('TOO_SLOW', slow(this.name), { cause: error })
    }
  }
}

async function counted(on: Sql, text: string, values: readonly (string | null)[], limit: number): Promise<number> {
  return Number((await on.query(text, [...values, String(limit)])).rows[0]!['count'])
}
