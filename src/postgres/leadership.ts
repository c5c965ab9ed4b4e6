import type { Database, Sql } from '../drivers/sql/sql.ts'
import { sqlOf } from '../drivers/sql/sql-of.ts'
import type { Leadership, Term } from '../outbox/leadership.ts'
import type { Holder } from '../outbox/waiting.ts'
import type { OutboxNames } from './names.ts'
import { sql } from './sql.generated.ts'

/** Leadership as rows of the outbox's companion tables. */
export class PostgresLeadership implements Leadership {
  readonly #db: Database
  readonly #names: OutboxNames

  constructor(db: Database, names: OutboxNames) {
    this.#db = db
    this.#names = names
  }

  /** `on`: where to say that it lives, if a connection is at hand: a pool may have none left. */
  async join(member: string, mode: string, lease: number, on: Sql = this.#db): Promise<string | undefined> {
    const values = [member, mode, String(lease)]
    const beat = await on.query(this.#names.fill(sql['leadership-heartbeat']), values)
    if (beat.count === 1) return undefined
    return this.#db.transaction(async (tx) => {
      const connection = sqlOf(tx)
      await connection.query(this.#names.fill(sql['leadership-gate']))
      const { rows } = await connection.query(this.#names.fill(sql['leadership-join']), values)
      return (rows[0]?.['other'] as string | null) ?? undefined
    })
  }

  async leave(member: string): Promise<void> {
    await this.#db.query(this.#names.fill('DELETE FROM {{members}} WHERE member = $1'), [member])
  }

  async members(on: Sql = this.#db): Promise<readonly string[]> {
    const { rows } = await on.query(
      this.#names.fill('SELECT member FROM {{members}} WHERE expires_at > clock_timestamp() ORDER BY member'),
    )
    return rows.map((row) => row['member'] as string)
  }

  /** In which modes live relays read at present. */
  async modes(): Promise<readonly string[]> {
    const { rows } = await this.#db.query(
      this.#names.fill('SELECT DISTINCT mode FROM {{members}} WHERE expires_at > clock_timestamp()'),
    )
    return rows.map((row) => row['mode'] as string)
  }

  /** Who keeps a relay of this mode out. */
  async otherMode(member: string, mode: string): Promise<Holder | undefined> {
    const text = this.#names.fill(sql['leadership-other'])
    return holderOf((await this.#db.query(text, [member, mode])).rows[0])
  }

  /** Who else holds the term of a shard. */
  async holder(member: string, shard: number): Promise<Holder | undefined> {
    const text = this.#names.fill(sql['leadership-holder'])
    return holderOf((await this.#db.query(text, [member, String(shard)])).rows[0])
  }

  get table(): string {
    return this.#names.table.text
  }

  async terms(): Promise<readonly { shard: number; holder: string }[]> {
    const { rows } = await this.#db.query(
      this.#names.fill(
        `SELECT shard, holder FROM {{terms}} WHERE shard >= 0 AND holder <> '' AND expires_at > clock_timestamp() ORDER BY shard`,
      ),
    )
    return rows.map((row) => ({ shard: Number(row['shard']), holder: row['holder'] as string }))
  }

  async acquire(member: string, shard: number, lease: number): Promise<Term | undefined> {
    return acquireTerm(this.#db, this.#names, member, shard, lease)
  }

  async renew(member: string, term: Term, lease: number): Promise<boolean> {
    const values = [member, String(term.shard), term.epoch, String(lease)]
    return (await this.#db.query(this.#names.fill(sql['leadership-renew']), values)).count === 1
  }

  async release(member: string, term: Term): Promise<void> {
    await this.#db.query(this.#names.fill(sql['leadership-release']), [member, String(term.shard), term.epoch])
  }
}

function holderOf(row: Readonly<Record<string, unknown>> | undefined): Holder | undefined {
  return row === undefined ? undefined : { holder: row['holder'] as string, expiresIn: Number(row['expires_in']) }
}

export async function acquireTerm(
  on: Sql,
  names: OutboxNames,
  member: string,
  shard: number,
  lease: number,
): Promise<Term | undefined> {
  const { rows } = await on.query(names.fill(sql['leadership-acquire']), [member, String(shard), String(lease)])
  const [row] = rows
  if (row === undefined) return undefined
  const abandoned = row['abandoned'] === true
  const note = abandoned ? ((row['note'] as string | null) ?? undefined) : undefined
  return { shard, epoch: row['epoch'] as string, abandoned, note }
}
