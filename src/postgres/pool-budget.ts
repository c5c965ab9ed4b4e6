import { Unavailable, WaybillError } from '../core/index.ts'
import type { Connection, Database } from '../drivers/sql/sql.ts'
import type { ReaderOptions } from '../outbox/reader.ts'
import { connectionsOf } from './relay-connections.ts'

/** One connection is left for everything else: joining, enqueue, handlers, the cleaner. */
const SPARE = 1

/** How long taking connections may last where the pool does not say how many it has. */
const TAKE_WITHIN = 5000

/** What one relay keeps checked out of the pool. */
export interface Kept {
  /** Relays of one group take turns, so that they need no more than the one that needs most. */
  readonly group: string
  readonly count: number
  /** For whom and what for, in words. */
  readonly what: string
}

/** What a relay keeps. Owners of a table take turns; those that compete read at the same time. */
export function keptByRelay(table: string, member: string, { reader, shards, wake }: ReaderOptions): Kept {
  const sessions = reader === 'lease' ? 1 : shards
  const each = wake ? 'to read, to settle and to be woken' : 'to read and to settle'
  const of = sessions === 1 ? '' : ` for each of ${sessions} shards`
  const count = sessions * connectionsOf(wake)
  return {
    group: reader === 'lease' ? member : table,
    count,
    what: `the relay of ${table} keeps ${count}, ${each}${of}`,
  }
}

/**
 * A relay never takes the last connection of a pool. What the relays of this process keep of it is added up when one
 * starts; a pool that is too small is refused then, with the number it needs. Otherwise they would wait for each other
 * for ever, and what is missing would look like a server that does not answer.
 */
export class PoolBudget {
  readonly #db: Database
  readonly #kept = new Map<string, Kept>()

  static of(db: Database): PoolBudget {
    const budget = budgets.get(db.pool) ?? new PoolBudget(db)
    budgets.set(db.pool, budget)
    return budget
  }

  private constructor(db: Database) {
    this.#db = db
  }

  /** Throws `POOL_TOO_SMALL`. */
  async keep(member: string, kept: Kept): Promise<void> {
    const { size, single } = this.#db
    if (single) return
    const others = this.#others(kept.group)
    const needed = kept.count + SPARE + others.reduce((sum, { count }) => sum + count, 0)
    const uses = [kept, ...others].map(({ what }) => what)
    if (size !== undefined && size < needed) throw this.#tooSmall(`has ${connections(size)}`, needed, uses)
    if (size === undefined) await this.#find(kept.count + SPARE, needed, uses)
    this.#kept.set(member, kept)
  }

  leave(member: string): void {
    this.#kept.delete(member)
  }

  /** The one that needs most of each other group. */
  #others(group: string): Kept[] {
    const most = new Map<string, Kept>()
    for (const kept of this.#kept.values()) {
      if (kept.group !== group && kept.count > (most.get(kept.group)?.count ?? 0)) most.set(kept.group, kept)
    }
    return [...most.values()]
  }

  /** Takes as many as are needed, and gives them back. */
  async #find(wanted: number, needed: number, uses: readonly string[]): Promise<void> {
    const open: Connection[] = []
    try {
      while (open.length < wanted) open.push(await this.#db.connect({ prepare: false, timeout: TAKE_WITHIN }))
    } catch (error) {
      // Without one the server may be away, which is waited for; so it is with an error that says more.
      if (open.length === 0 || !(error instanceof Unavailable)) throw error
      throw this.#tooSmall(`gave ${connections(open.length)} within ${TAKE_WITHIN / 1000} s`, needed, uses)
    } finally {
      await Promise.all(open.map((connection) => connection.release()))
    }
  }

  #tooSmall(has: string, needed: number, uses: readonly string[]): WaybillError {
    const why = [...uses, `${SPARE} for everything else`].join('; ')
    const text = `${this.#db.poolName} ${has}, and ${needed} are needed: ${why}. Give it max: ${needed} or more, or use a second pool`
    return new WaybillError('POOL_TOO_SMALL', text)
  }
}

function connections(count: number): string {
  return count === 1 ? '1 connection' : `${count} connections`
}

const budgets = new WeakMap<object, PoolBudget>()
