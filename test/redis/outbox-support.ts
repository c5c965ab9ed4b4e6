import { describe } from 'vitest'
import { systemClock } from '../../src/core/index.ts'
import {
  type RedisOptions,
  type RedisOutbox,
  type RedisOutboxOptions,
  redis,
  redisOutbox,
  type StoredOutboxOptions,
} from '../../src/redis/index.ts'
import { outboxAdminSuite, outboxReaderSuite, outboxStoreSuite, type Suite } from '../../src/testing/index.ts'
import { READER as USUAL } from '../../src/testing/outbox-probe.ts'
import { runSuite } from '../support/suite.ts'
import { freshTag, storeOf } from './support.ts'

/** An outbox on a store with a tag of its own. */
export function outboxOn(
  client: object,
  options: Partial<StoredOutboxOptions> = {},
  store: Partial<RedisOptions> = {},
) {
  const db = storeOf(client, { ...store, outbox: { kind: 'stored', ...options } })
  return { db, outbox: db.outbox }
}

/** An outbox of several shards. */
export function shardedOn(client: () => object, count: number, options: Partial<RedisOutboxOptions> = {}): RedisOutbox {
  return redisOutbox({ on: Array.from({ length: count }, () => storeOf(client())), ...options })
}

/** How a relay asks for a reader, when nothing of that matters. */
export const READER = { ...USUAL, reader: 'auto', clock: systemClock } as const

/** All suites of an outbox. */
export function outboxConformance(name: string, client: () => object): void {
  const create = async () => {
    const given = client()
    const db = redis({ client: given, tag: freshTag(), outbox: { kind: 'stored' } })
    return {
      work: db,
      outbox: db.outbox,
      // One that owns the outbox is not needed for order: see decision 0019.
      reader: 'auto' as const,
      pool: given,
      close: () => db.stop(),
    }
  }
  const run = (title: string, suite: Suite) =>
    describe(title, () => {
      runSuite(suite, { concurrent: true })
    })
  run('outbox store', outboxStoreSuite({ name, features: { refusesPool: true }, create }))
  run('outbox reader', outboxReaderSuite({ name, features: { lease: true, order: true, wakes: true }, create }))
  run('outbox admin', outboxAdminSuite({ name, create }))
}
