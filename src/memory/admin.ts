import {
  checkOptions,
  describe,
  isUuid,
  milliseconds,
  type RawMessage,
  uuidv7,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import {
  type AdminAction,
  type Audit,
  type AuditEntry,
  type Count,
  type OutboxAdmin,
  type OutboxEntry,
  type OutboxFilter,
  type OutboxStats,
  type Page,
  type PendingFilter,
  type Preview,
  STATES,
  type State,
  type StatsOptions,
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
} from '../outbox/admin-checks.ts'
import { refusedByLog } from '../store/log.ts'
import { compare, matches, placeOf, readCursor } from './admin-filter.ts'
import { eventRow } from './outbox.ts'
import { entryOf, messageOf, type Row } from './row.ts'
import type { Table } from './table.ts'

const SAMPLE = 10

/** What people do with an outbox, in memory. */
export class MemoryOutboxAdmin implements OutboxAdmin {
  readonly name: string
  readonly #table: Table
  readonly #audits: AuditEntry[] = []
  /** An event has one number for good. */
  readonly #log: boolean

  constructor(table: Table, log = false) {
    this.name = table.name
    this.#log = log
    this.#table = table
  }

  async list(filter: OutboxFilter = {}, page: Page = {}): Promise<readonly OutboxEntry[]> {
    const { limit, after } = pageOf('list', page)
    const from = after === undefined ? undefined : readCursor(after)
    return this.#find(matches('list', filter))
      .filter((row) => from === undefined || compare(placeOf(row), from) > 0)
      .slice(0, limit)
      .map(listed)
  }

  async show(eventId: string): Promise<{ readonly entry: OutboxEntry; readonly message: RawMessage } | undefined> {
    if (!isUuid(eventId)) {
      throw new WaybillError('INVALID_OPTION', `show: ${describe(eventId)} is not an event id, which is a UUID`)
    }
    const row = this.#table.rows.get(eventId.toLowerCase())
    return row === undefined ? undefined : { entry: listed(row), message: messageOf(row) }
  }

  async preview(action: AdminAction, filter: OutboxFilter): Promise<Preview> {
    const rows = this.#touched(checkAction(action), filter)
    return { count: rows.length, exact: true, sample: rows.slice(0, SAMPLE).map(listed) }
  }

  async rearm(filter: OutboxFilter, audit?: Audit, options: { limit?: number } = {}): Promise<number> {
    const limit = limitOf('rearm', options)
    return this.#act('rearm', filter, auditOr('rearm', audit), (rows) => {
      for (const row of rows.slice(0, limit)) {
        row.attempts = 0
        this.#table.become(row, 'retrying', this.#table.now())
      }
      return Math.min(limit, rows.length)
    })
  }

  async discardDead(filter: OutboxFilter, audit: Audit, options: { limit?: number } = {}): Promise<number> {
    const limit = limitOf('discardDead', options)
    checkAudit('discardDead', audit)
    return this.#act('discard-dead', filter, audit, (rows) => {
      for (const row of rows.slice(0, limit)) this.#table.remove(row)
      return Math.min(limit, rows.length)
    })
  }

  async discardPending(filter: PendingFilter, audit: Audit, options: { expected: number }): Promise<number> {
    checkWindow(filter)
    checkAudit('discardPending', audit)
    const expected = expectedOf(options)
    return this.#act('discard-pending', filter, audit, (rows) => {
      refuseUnexpected(Math.min(rows.length, expected + 1), expected)
      for (const row of rows) this.#table.remove(row)
      return rows.length
    })
  }

  async replay(
    filter: OutboxFilter,
    audit?: Audit,
    options: { asNew?: boolean; limit?: number } = {},
  ): Promise<number> {
    const { asNew, limit } = replayOf(options)
    if (this.#log && asNew) throw refusedByLog(this.name, 'asNew')
    const replay = (rows: readonly Row[]) => {
      if (rows.length > limit) {
        const advice = 'nothing was sent; narrow the filter, or give a larger limit'
        throw new WaybillError('TOO_MANY', `replay: more than ${limit} events match; ${advice}`)
      }
      for (const row of rows) this.#again(row, asNew)
      return rows.length
    }
    return this.#act('replay', filter, auditOr('replay', audit), replay, asNew ? { asNew } : {})
  }

  async audits(page: Page = {}): Promise<readonly AuditEntry[]> {
    const { limit, after } = pageOf('audits', page)
    if (after !== undefined && !/^\d{1,18}$/.test(after)) {
      throw new WaybillError('INVALID_OPTION', `audits: after: ${describe(after)} is not the id of a line`)
    }
    return this.#audits
      .filter(({ id }) => after === undefined || Number(id) < Number(after))
      .reverse()
      .slice(0, limit)
  }

  async stats(_options?: StatsOptions): Promise<OutboxStats> {
    const states = Object.fromEntries(STATES.map((state) => [state, { count: 0, estimated: false }]))
    const blocked = new Set<string>()
    const now = this.#table.now()
    let oldest = Number.POSITIVE_INFINITY
    for (const { state, key, createdAt, availableAt = createdAt } of this.#table.rows.values()) {
      states[state]!.count++
      if (state === 'held') blocked.add(key!)
      const due = (state === 'scheduled' || state === 'retrying') && availableAt <= now
      if (state === 'ready' || due) oldest = Math.min(oldest, Math.max(createdAt, availableAt))
      if (state === 'leased') oldest = Math.min(oldest, createdAt)
    }
    return {
      states: states as Record<State, Count>,
      oldestReadySeconds: Number.isFinite(oldest) ? Math.max(0, now - oldest) / 1000 : undefined,
      blockedKeys: { count: blocked.size, estimated: false },
    }
  }

  async clean(options: { retention?: number; limit?: number } = {}): Promise<number> {
    checkOptions('clean', options, { retention: true, limit: true })
    const retention = wholeNumber('clean: retention', options.retention ?? milliseconds('7d'), { min: 0 })
    const limit = wholeNumber('clean: limit', options.limit ?? 10_000, { max: 1_000_000 })
    const old = this.#table.now() - retention
    let count = 0
    for (const row of this.#table.rows.values()) {
      if (count === limit) break
      if (row.state !== 'published' || row.publishedAt! > old) continue
      this.#table.remove(row)
      count++
    }
    return count
  }

  #find(match: (row: Row) => boolean): Row[] {
    return [...this.#table.rows.values()].filter(match).sort((a, b) => compare(placeOf(a), placeOf(b)))
  }

  /** What an action would touch. What a competing relay has leased and works on is left to it. */
  #touched(action: AdminAction, filter: OutboxFilter): Row[] {
    const rows = this.#find(matches(action, filter, action))
    return rows.filter(({ state, availableAt }) => state !== 'leased' || availableAt! <= this.#table.now())
  }

  /** Under a new number, behind what is pending now. In a log under its own. */
  #again(old: Row, asNew: boolean): void {
    if (this.#log) {
      old.attempts = 0
      old.publishedAt = undefined
      this.#table.become(old, 'ready')
      return
    }
    const { message, topic } = old
    const row = eventRow(asNew ? message.with({ id: uuidv7() }) : message, { topic }, () => topic)
    row.sequence = this.#table.nextSequence()
    row.createdAt = asNew ? this.#table.now() : old.createdAt
    if (!asNew) this.#table.remove(old)
    this.#table.insert(row)
  }

  /** In the order of their numbers. What is done and its line in the audit, or neither. */
  #act(
    action: AdminAction,
    filter: OutboxFilter,
    { by, note }: Audit,
    fn: (rows: Row[]) => number,
    more: Record<string, unknown> = {},
  ): number {
    const rows = this.#touched(action, filter).sort((a, b) => a.sequence - b.sequence)
    const count = fn(rows)
    const id = String(this.#audits.length + 1)
    // As it would come back from a database.
    const kept = JSON.parse(JSON.stringify({ ...filter, ...more }))
    this.#audits.push({ id, at: new Date(this.#table.now()), action, by, note, filter: kept, count })
    return count
  }
}

function listed(row: Row): OutboxEntry {
  return { ...entryOf(row), cursor: placeOf(row).join(' ') }
}
