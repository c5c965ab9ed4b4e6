import { randomBytes } from 'node:crypto'
import { Redis as IoRedis } from 'ioredis'
import { afterAll, describe } from 'vitest'
import {
  type AnyRedisStore,
  type RedisOptions,
  type RedisOutbox,
  type RedisStore,
  type RedisTx,
  redis,
  type StoredOutboxOptions,
} from '../../src/redis/index.ts'
import { inboxStoreSuite, type Suite, unitOfWorkSuite } from '../../src/testing/index.ts'
import { WAIT_LIMIT } from '../support/limits.ts'
import { runSuite } from '../support/suite.ts'
import { eventually } from '../support/wait.ts'

export { ioredis, nodeRedis } from './clients.ts'

let made = 0

/** A tag nobody else has. */
export function freshTag(prefix = 't'): string {
  return `${prefix}-${randomBytes(5).toString('hex')}-${++made}`
}

const readers = new Map<string, IoRedis>()
const stores: AnyRedisStore[] = []

afterAll(async () => {
  for (const client of readers.values()) client.disconnect()
  for (const store of stores.splice(0)) await store.stop()
})

/** A client that reads what is there; closed for you. */
export function reader(url: string): IoRedis {
  const known = readers.get(url)
  if (known !== undefined) return known
  const client = new IoRedis(url)
  client.on('error', () => {})
  readers.set(url, client)
  return client
}

/** A store with a tag of its own; stopped for you. */
export function storeOf(
  client: object,
  options: Partial<RedisOptions> & { outbox: StoredOutboxOptions },
): RedisStore<RedisOutbox>
export function storeOf(client: object, options?: Partial<RedisOptions>): RedisStore
export function storeOf(client: object, options: Partial<RedisOptions> = {}): AnyRedisStore {
  const store = redis({ client, tag: freshTag(), ...options })
  stores.push(store)
  return store
}

/** Names of keys that a pattern finds. */
export async function keysOf(client: IoRedis, tag: string): Promise<string[]> {
  const found: string[] = []
  let cursor = '0'
  do {
    const [next, keys] = await client.scan(cursor, 'MATCH', `{${tag}}:*`, 'COUNT', 1000)
    found.push(...keys)
    cursor = next
  } while (cursor !== '0')
  return found.sort()
}

/** The suites of the ports that are implemented here. */
export function conformance(name: string, client: () => object): void {
  const create = async () => {
    const db = redis({ client: client(), tag: freshTag() })
    const words = db.key('words')
    return {
      work: db,
      inbox: db.inbox,
      pool: client(),
      async write(tx: RedisTx, word: string) {
        tx.sadd(words, word)
      },
      async words() {
        const found = (await db.connection.command(['smembers', words])) as Buffer[]
        return found.map(String)
      },
      close: () => db.stop(),
    }
  }
  const run = (title: string, suite: Suite) =>
    describe(title, () => {
      runSuite(suite)
    })
  run('unit of work', unitOfWorkSuite({ name, create }))
  const skips = {
    'cleaning forgets what is older than the retention, so many at a time, and nothing else':
      'Redis forgets by itself when the retention is over; inbox.test.ts shows it',
  }
  run('inbox store', inboxStoreSuite({ name, features: { refusesPool: true }, create }, { skips }))
}

/** Until it holds, looked at again and again. */
export async function until(what: string, look: () => boolean | Promise<boolean>, within = WAIT_LIMIT): Promise<void> {
  await eventually(what, look, { limit: within })
}
