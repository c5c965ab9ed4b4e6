import pg from 'pg'
import { encodeData } from '../../src/core/index.ts'
import type { Message } from '../../src/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import {
  type HeldBy,
  type Log,
  type LogEvent,
  type Projection,
  Projector,
  type ProjectorOptions,
} from '../../src/projection/index.ts'

import { freshDatabase, type Service } from '../support/services.ts'

export * from './shop.ts'

/** A log in a list, whose gaps and holders a test decides. */
export class ListLog implements Log {
  readonly id: string
  readonly events: LogEvent[] = []
  incarnation = 'first'
  heldBy: HeldBy | undefined
  /** Nothing above it is given while somebody holds the log back. */
  heldAt = 0n
  next = 1n
  reads = 0
  /** How often it was said that nobody need tell. */
  busy = 0
  /** Those who wait to be told now: every writer notifies them. */
  get waiting(): number {
    return this.#waiting.size
  }
  #waiting = new Set<() => void>()

  constructor(id = 'list') {
    this.id = id
  }

  append(...messages: Message[]): bigint[] {
    const positions = messages.map((message) => {
      const position = this.next++
      const raw = encodeData(message)
      const about = { position, id: message.id, key: raw.key, type: raw.type, recordedAt: new Date() }
      this.events.push({ ...about, message: raw, unreadable: undefined })
      return position
    })
    for (const wake of this.#waiting) wake()
    return positions
  }

  async head() {
    return { position: this.next - 1n, trimmed: 0n, incarnation: this.incarnation }
  }

  async read(after: bigint, limit: number) {
    this.reads++
    const bound = this.heldBy === undefined ? this.next - 1n : this.heldAt
    const open = this.events.filter(({ position }) => position > after && position <= bound)
    const events = open.slice(0, limit)
    const upTo = open.length > limit ? events.at(-1)!.position : bound
    return { events, upTo: upTo < after ? after : upTo, heldBy: this.heldBy }
  }

  token(receipts: string | readonly string[]) {
    return { log: this.id, positions: [receipts].flat().map(BigInt) }
  }

  async listen() {
    return {
      wait: (ms: number, signal: AbortSignal) => this.#wait(ms, signal),
      busy: () => void this.busy++,
      close: async () => {},
    }
  }

  #wait(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer)
        this.#waiting.delete(done)
        resolve()
      }
      const timer = setTimeout(done, ms)
      this.#waiting.add(done)
      signal.addEventListener('abort', done, { once: true })
    })
  }
}

export interface World {
  readonly url: string
  readonly pool: pg.Pool
  readonly db: Postgres<pg.PoolClient>
  rows(table?: string): Promise<Record<string, unknown>[]>
  projector(log: Log, projections: readonly Projection[], options?: Partial<ProjectorOptions<pg.PoolClient>>): Projector
  end(): Promise<void>
}

export async function world(on: string | Service = 'postgres', options: object = {}): Promise<World> {
  const database = await freshDatabase(on)
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool, projections: true, ...options })
  await db.migrate()
  const projectors: Projector[] = []
  return {
    url: database.url,
    pool,
    db,
    rows: async (table = 'order_list_view') => (await pool.query(`SELECT * FROM ${table} ORDER BY 1`)).rows,
    projector(log, projections, more = {}) {
      const random = { next: () => 0, fill: (bytes: Uint8Array) => void crypto.getRandomValues(bytes) }
      const made = new Projector({ store: db, log, projections, random, ...more }) as unknown as Projector
      projectors.push(made)
      return made
    },
    async end() {
      for (const projector of projectors) await projector.stop().catch(() => {})
      await pool.end()
      await database.drop()
    },
  }
}
