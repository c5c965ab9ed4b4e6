import type { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { afterAll } from 'vitest'
import { event, type Message, RoutingRelay, type RoutingRelayOptions } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector } from '../../src/testing/index.ts'
import { freshPGlite } from '../support/pglite.ts'
import { freshDatabase } from '../support/services.ts'
import { BRANCHES, ROUTES } from './routing-routes.ts'

export const Placed = event<{ n: number }>('order.placed')
export const Paid = event<{ n: number }>('invoice.paid')
type Reader = 'owner' | 'lease'

let embedded: Promise<PGlite> | undefined
let made = 0

afterAll(async () => (await embedded)?.close())

const STORES = {
  memory: async () => {
    const db = memory({ outbox: { branches: BRANCHES } })
    return { db, end: async () => {} }
  },
  pglite: async () => {
    // One for all tests of a file: starting it takes seconds.
    embedded ??= freshPGlite()
    const db = postgres({ pool: await embedded, outbox: { table: `outbox_${++made}`, branches: BRANCHES } })
    await db.migrate()
    return { db, end: async () => {} }
  },
  postgres: async () => {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url, max: 30 })
    pool.on('error', () => {})
    const db = postgres({ pool, outbox: { branches: BRANCHES } })
    await db.migrate()
    const end = async () => {
      await pool.end()
      await database.drop()
    }
    return { db, end }
  },
}

export type Store = keyof typeof STORES

export const KINDS: readonly { readonly store: Store; readonly reader: Reader }[] = [
  { store: 'memory', reader: 'owner' },
  { store: 'memory', reader: 'lease' },
  { store: 'pglite', reader: 'owner' },
  { store: 'postgres', reader: 'owner' },
  { store: 'postgres', reader: 'lease' },
]

/** An outbox with two branches, a collector at the end of each, and relays between. */
export async function world(store: Store, reader: Reader) {
  const { db, end } = (await STORES[store]()) as unknown as { db: ReturnType<typeof memory>; end(): Promise<void> }
  const [warehouse, audit] = [collector({ name: 'warehouse' }), collector({ name: 'audit' })]
  const relays: RoutingRelay[] = []
  return {
    db,
    warehouse,
    audit,
    relay(options: Partial<RoutingRelayOptions> = {}): RoutingRelay {
      const relay = new RoutingRelay({
        from: db.outbox,
        to: { warehouse, audit },
        routes: ROUTES,
        reader,
        outage: { min: 5, max: 20 },
        poll: '10ms',
        maxPoll: '50ms',
        ...options,
        retry: { backoff: { min: 0, max: 0, jitter: 0 }, ...options.retry },
      })
      relays.push(relay)
      return relay
    },
    async enqueue(...events: Message[]): Promise<void> {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
    },
    /** Everything that is not published: by branch, state and attempts. */
    async left(branch: string) {
      const states = ['ready', 'retrying', 'leased', 'held', 'dead'] as const
      const entries = await db.outbox.branch(branch).admin.list({ states }, { limit: 1000 })
      return entries.map(({ state, attempts, key }) => ({ state, attempts, key }))
    },
    async end(): Promise<void> {
      await Promise.all(relays.map((relay) => relay.stop()))
      await end()
    },
  }
}

export function orders(count: number, keys = 0): Message[] {
  return Array.from({ length: count }, (_, n) => Placed({ n }, keys === 0 ? {} : { key: `k${n % keys}` }))
}

export function ids(messages: readonly Message[]): string[] {
  return messages.map(({ id }) => id).sort()
}

/** The numbers of each key, in the order they arrived. */
export function byKey(messages: readonly Message[]): Record<string, number[]> {
  const keys: Record<string, number[]> = {}
  for (const message of messages) {
    keys[message.key!] ??= []
    keys[message.key!]!.push(JSON.parse(message.data as string).n)
  }
  return keys
}
