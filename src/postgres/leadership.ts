import { describe, WaybillError } from '../core/index.ts'
import type { TableName } from '../drivers/sql/identifiers.ts'
import type { Database, Sql } from '../drivers/sql/sql.ts'
import { sqlOf } from '../drivers/sql/sql-of.ts'
import type { Holder, Leadership, Member, Term } from '../outbox/leadership.ts'
import { explained } from './errors.ts'
import type { TableSchema } from './migrate-tables.ts'
import { sql } from './sql.generated.ts'

/** As rows of two tables: members, and terms. */
export class PostgresLeadership implements Leadership {
  readonly #db: Database
  readonly #place: ScopePlace
  readonly #on: () => Sql

  /** `on`: where statements run, if a connection is at hand: a pool may have none left. */
  constructor(db: Database, place: ScopePlace, on: () => Sql = () => db) {
    this.#db = db
    this.#place = place
    this.#on = on
  }

  /** The same on one connection. */
  over(connection: Sql): PostgresLeadership {
    return new PostgresLeadership(this.#db, this.#place, () => connection)
  }

  async join(
    member: string,
    mode: string,
    lease: number,
  ): Promise<{ readonly excludedBy?: Holder & { readonly mode: string } }> {
    const values = [member, mode, String(lease)]
    if ((await this.#query('leadership-heartbeat', values)).count === 1) return {}
    return this.#explained(() =>
      this.#db.transaction(async (tx) => {
        const connection = sqlOf(tx)
        await connection.query(this.#fill(sql['leadership-gate']))
        const [other] = (await connection.query(this.#fill(sql['leadership-join']), values)).rows
        return other === undefined ? {} : { excludedBy: { ...holderOf(other), mode: other['mode'] as string } }
      }),
    )
  }

  async leave(member: string): Promise<void> {
    await this.#query('leadership-leave', [member])
  }

  async members(): Promise<readonly Member[]> {
    const { rows } = await this.#query('leadership-members')
    return rows.map((row) => ({ name: row['member'] as string, mode: row['mode'] as string }))
  }

  async terms(): Promise<readonly (Holder & { readonly shard: number })[]> {
    const { rows } = await this.#query('leadership-terms')
    return rows.map((row) => ({ shard: Number(row['shard']), ...holderOf(row) }))
  }

  async acquire(member: string, shard: number, lease: number): Promise<Term | undefined> {
    const [row] = (await this.#query('leadership-acquire', [member, String(shard), String(lease)])).rows
    if (row === undefined) return undefined
    const abandoned = row['abandoned'] === true
    const probe = abandoned ? ((row['note'] as string | null) ?? undefined) : undefined
    return { shard, epoch: row['epoch'] as string, abandoned, probe }
  }

  async renew(member: string, term: Term, lease: number): Promise<boolean> {
    const values = [member, String(term.shard), term.epoch, String(lease)]
    return (await this.#query('leadership-renew', values)).count === 1
  }

  async recordProbe(term: Term, probe: string | undefined): Promise<void> {
    await this.#query('leadership-note', [String(term.shard), term.epoch, probe ?? null])
  }

  async release(member: string, term: Term): Promise<void> {
    await this.#query('leadership-release', [member, String(term.shard), term.epoch])
  }

  #query(name: LeadershipStatement, values: readonly (string | null)[] = []) {
    return this.#explained(() => this.#on().query(this.#fill(sql[name]), values))
  }

  #fill(text: string): string {
    return text.replace(/\{\{(\w+)\}\}/g, (_, name: keyof ScopePlace) => this.#place[name])
  }

  async #explained<T>(fn: () => Promise<T>): Promise<T> {
    try {
      return await fn()
    } catch (error) {
      throw explained(error, `table ${this.#place.terms}`)
    }
  }
}

type LeadershipStatement = Extract<keyof typeof sql, `leadership-${string}`>

function holderOf(row: Readonly<Record<string, unknown>>): Holder {
  return { holder: row['holder'] as string, expiresIn: Number(row['expires_in']) }
}

/** What the statements need to know: where the rows are, and which of them. */
interface ScopePlace {
  readonly terms: string
  readonly members: string
  /** Columns and values that come first, and a condition that comes last. */
  readonly scope: string
  readonly value: string
  readonly within: string
  /** The type of the column `note`, where probes are recorded. */
  readonly note: string
}

/** The relays of an outbox: tables of its own, which its settlements are fenced by. */
export function ofOutbox(outbox: TableName): ScopePlace {
  const [terms, members] = [outbox.companion('terms'), outbox.companion('members')]
  return { terms, members, scope: '', value: '', within: '', note: 'uuid' }
}

/** Any other scope: two tables for all of them. */
export function ofScope(outbox: TableName, scope: string): ScopePlace {
  if (typeof scope !== 'string' || !/^[\w.:/ -]{1,200}$/.test(scope)) {
    const allowed = 'give 1 to 200 letters, digits, spaces and . : / _ -'
    throw new WaybillError('INVALID_OPTION', `leadership: ${describe(scope)} is not the name of a scope; ${allowed}`)
  }
  const tables = scopeTables(outbox)
  return { ...tables, scope: 'scope, ', value: `'${scope}', `, within: ` AND scope = '${scope}'`, note: 'text' }
}

function scopeTables(outbox: TableName) {
  return { terms: outbox.companion('scope_terms'), members: outbox.companion('scope_members') }
}

/** The tables of `ofScope`, beside the outbox. */
export function scopeSchema(outbox: TableName): TableSchema {
  const { terms, members } = scopeTables(outbox)
  const fill = (text: string) => text.replaceAll('{{terms}}', terms).replaceAll('{{members}}', members)
  const table = `${outbox.table}_scope_terms`
  return {
    table: { ...outbox, table, text: outbox.schema === undefined ? table : `${outbox.schema}.${table}`, sql: terms },
    versions: [fill(sql['scope-create'])],
    chosen: [],
    options: {},
    drop: fill(sql['scope-drop']),
  }
}
