import { type Clock, telemetry, withoutText } from '../core/index.ts'
import { type Connection, textArray } from '../drivers/sql/sql.ts'
import { isRefusal } from './errors.ts'
import type { OutboxNames } from './names.ts'
import { type Row, sequenceOf } from './row.ts'
import { sql } from './sql.generated.ts'

/** How long before a row that could not be claimed is tried again, in milliseconds. */
const LEAVE_OUT_FOR = 60_000
/** With so many of them nothing more is claimed. */
const MOST_LEFT_OUT = 1000

const WITHOUT = ' AND event_id <> ALL ($7::text::uuid[])'
const ONLY = ' AND event_id = ANY ($7::text::uuid[])'

/** The parameters of lease-claim.sql. */
export type ClaimValues = readonly [
  count: string,
  token: string,
  lease: string,
  attempts: string,
  expired: string,
  mark: string,
]

/**
 * Claims are updates, and one row that the table refuses (a trigger, a constraint) would fail every claim it is picked for.
 * Then fewer are claimed, down to one by one; that row is reported and left out for a minute.
 */
export class RowClaims {
  readonly #reader: Connection
  readonly #table: string
  readonly #clock: Clock
  readonly #sql: Record<'any' | 'without' | 'only' | 'pick', string>
  readonly #leftOut = new Set<string>()
  #until = 0

  constructor(reader: Connection, names: OutboxNames, clock: Clock) {
    this.#reader = reader
    this.#table = names.table.text
    this.#clock = clock
    const filled = (text: string, which: string) => names.fill(text.replaceAll('{{which}}', which))
    const claim = sql['lease-claim'].replace('{{pick}}', () => sql['lease-pick'])
    const picked = ['expired', 'ready', 'due', 'held'].map((part) => `SELECT event_id FROM ${part}`).join(' UNION ALL ')
    // The server must know the types of all parameters, also of those that only a claim needs.
    const pick = `${sql['lease-pick']}
SELECT event_id::text, event_type, NULLIF(tenant_id, '') FROM {{outbox}}
WHERE event_id IN (${picked}) AND concat($2::text, $3::text, $4::text) <> ''`
    this.#sql = {
      any: filled(claim, ''),
      without: filled(claim, WITHOUT),
      only: filled(claim, ONLY),
      pick: filled(pick, WITHOUT),
    }
  }

  /** Rows as lease-claim.sql returns them, by number. */
  async claim(values: ClaimValues): Promise<readonly Row[]> {
    if (this.#leftOut.size > 0 && this.#clock.monotonic() >= this.#until) this.#leftOut.clear()
    try {
      return await this.#read(this.#leftOut.size === 0 ? 'any' : 'without', values, this.#leftOut)
    } catch (error) {
      if (!isRefusal(error)) throw error
      // Its payload was not read, and a trigger may quote it.
      if (this.#leftOut.size >= MOST_LEFT_OUT) throw withoutText(error)
      const [count, token, lease, attempts, expired, mark] = values
      const half = String(Number(count) >> 1)
      if (half === '0') return this.#oneByOne(values)
      return this.claim([half, token, lease, attempts, Number(expired) === 0 ? '0' : '1', mark])
    }
  }

  /** One of each state index at most. */
  async #oneByOne(values: ClaimValues): Promise<readonly Row[]> {
    const picked = await this.#reader.read('lease-pick', this.#sql.pick, this.#parameters(values, this.#leftOut, true))
    const rows: Row[] = []
    for (const [id, type, tenant] of picked as readonly string[][]) {
      try {
        rows.push(...(await this.#read('only', values, [id!])))
      } catch (error) {
        if (!isRefusal(error)) throw error
        if (this.#leftOut.size === 0) this.#until = this.#clock.monotonic() + LEAVE_OUT_FOR
        this.#leftOut.add(id!)
        const about = { flow: this.#table, type: type!, id: id!, tenant: tenant ?? undefined }
        const shown = { ...about, error: withoutText(error) }
        telemetry['settlement.refused'].publish({ ...shown, settlement: 'release', dead: false })
      }
    }
    return picked.length > 0 && rows.length === 0 ? this.claim(values) : rows
  }

  async #read(which: 'any' | 'without' | 'only', values: ClaimValues, ids: Iterable<string>): Promise<readonly Row[]> {
    const parameters = this.#parameters(values, ids, which !== 'any')
    const rows = await this.#reader.read(`lease-claim-${which}`, this.#sql[which], parameters)
    return rows.toSorted((a, b) => Number(sequenceOf(a)) - Number(sequenceOf(b)))
  }

  #parameters(values: ClaimValues, ids: Iterable<string>, named: boolean): string[] {
    return named ? [...values, textArray([...ids])] : [...values]
  }
}
