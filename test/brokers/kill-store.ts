import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import type { Message } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'
import { freshDatabase } from '../support/services.ts'
import { fresh } from './support.ts'

/** What a message did; in the order in which they did it. */
export interface Effect {
  readonly id: string
  readonly key: string
  readonly n: number
}

/** Where a kill test has its outbox, its inbox and the effects. */
export interface KillStore {
  /** Tells the children where it is. */
  readonly job: object
  enqueue(events: readonly Message[]): Promise<void>
  /** How many are in the outbox and not published. */
  pending(): Promise<number>
  /** How many effects there are. */
  count(): Promise<number>
  effects(): Promise<readonly Effect[]>
  close(): Promise<void>
}

export async function onPostgres(): Promise<KillStore> {
  const database = await freshDatabase()
  const pool = new pg.Pool({ connectionString: database.url, max: 10 })
  pool.on('error', () => {})
  const db = postgres({ pool })
  await db.migrate()
  await pool.query('CREATE TABLE effects (at bigserial, event_id text NOT NULL, key text, n int)')
  const count = async (what: string) => Number((await pool.query(`SELECT count(*) AS n FROM ${what}`)).rows[0].n)
  return {
    job: { database: database.url },
    enqueue: async (events) => void (await db.withTransaction((tx) => db.outbox.enqueue(tx, events))),
    pending: () => count(`outbox WHERE state <> 'published'`),
    count: () => count('effects'),
    effects: async () => (await pool.query('SELECT event_id AS id, key, n FROM effects ORDER BY at')).rows,
    async close() {
      await pool.end()
      await database.drop()
    },
  }
}

export async function onRedis(url: string): Promise<KillStore> {
  const client = new IoRedis(url)
  const tag = fresh('kills')
  const db = redis({ client: new IoRedis(url, { lazyConnect: true }), tag, outbox: { kind: 'stored' } })
  const { outbox } = db
  const effects = db.key('effects')
  return {
    job: { redis: url, tag },
    enqueue: async (events) => void (await db.withTransaction((tx) => outbox.enqueue(tx, events))),
    async pending() {
      const { states } = await outbox.admin.stats()
      const all = Object.values(states).reduce((sum, { count }) => sum + count, 0)
      return all - states.published.count
    },
    count: () => client.llen(effects),
    effects: async () => (await client.lrange(effects, 0, -1)).map((text) => JSON.parse(text) as Effect),
    async close() {
      await db.stop()
      client.disconnect()
    },
  }
}
