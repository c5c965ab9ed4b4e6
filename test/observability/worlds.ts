import { Redis as IoRedis } from 'ioredis'
import pg from 'pg'
import * as client from 'prom-client'
import type { EnqueueOptions, Message, Outbox } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { type MetricsOptions, recordMetrics } from '../../src/observability/index.ts'
import type { OutboxReader } from '../../src/outbox/reader.ts'
import { postgres } from '../../src/postgres/index.ts'
import { redis } from '../../src/redis/index.ts'
import { freshTag } from '../redis/support.ts'
import { freshDatabase, service } from '../support/services.ts'

/** A store with an outbox, as these tests use it. */
export interface World {
  readonly outbox: Outbox<never> & OutboxReader
  enqueue(events: Message | readonly Message[], options?: EnqueueOptions): Promise<void>
  end(): Promise<void>
}

export const WORLDS: Readonly<Record<string, () => Promise<World>>> = {
  async memory() {
    const db = memory()
    return {
      outbox: db.outbox as never,
      enqueue: async (events, options) => {
        await db.withTransaction((tx) => db.outbox.enqueue(tx, [events].flat(), options))
      },
      end: async () => {},
    }
  },
  async postgres() {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url, max: 20 })
    pool.on('error', () => {})
    const db = postgres({ pool })
    await db.migrate()
    return {
      outbox: db.outbox as never,
      enqueue: async (events, options) => {
        await db.withTransaction((tx) => db.outbox.enqueue(tx, [events].flat(), options))
      },
      async end() {
        await pool.end()
        await database.drop()
      },
    }
  },
  async redis() {
    const connection = new IoRedis(service('redis').url)
    const db = redis({ client: connection, tag: freshTag(), outbox: { kind: 'stored' } })
    return {
      outbox: db.outbox as never,
      enqueue: async (events, options) => {
        await db.withTransaction((tx) => db.outbox.enqueue(tx, [events].flat(), options))
      },
      async end() {
        await db.stop()
        connection.disconnect()
      },
    }
  },
}

/** A registry of its own, recorded to, and read as a scrape reads it. */
export function scraped(options: Partial<MetricsOptions> = {}) {
  const registry = new client.Registry()
  const stop = recordMetrics({ client, registry, ...options })
  return {
    registry,
    stop,
    /** The samples of one metric, by their labels: `{ 'topic="a"': 1 }`; the table is left out. */
    async of(name: string): Promise<Record<string, number>> {
      const found: Record<string, number> = {}
      for (const line of (await registry.metrics()).split('\n')) {
        const match = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line)
        if (match?.[1] !== name) continue
        const labels = (match[2] ?? '').replace(/table="[^"]*",?/, '').replace(/,$/, '')
        found[labels] = Number(match[3])
      }
      return found
    },
  }
}
