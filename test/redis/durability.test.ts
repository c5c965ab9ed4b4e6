import { Redis } from 'ioredis'
import { beforeAll, expect, test } from 'vitest'
import { classify, systemClock } from '../../src/core/index.ts'
import { redisDue, redisOutbox } from '../../src/redis/index.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import {
  admin,
  eventually,
  type RedisNode,
  type RedisVersion,
  replicated,
  standalone,
} from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { ioredis, nodeRedis, storeOf } from './support.ts'

type Store = ReturnType<typeof storeOf>

const READER = { reader: 'auto', deadKey: 'continue', shards: 1, lease: 60_000, deletes: true, wake: false } as const

/** Whatever a service may begin with. */
const BEGINNINGS: Record<string, (db: Store) => Promise<unknown>> = {
  'a unit of work': (db) => db.withTransaction(async (tx) => tx.set(db.key('n'), 1)),
  'the inbox': (db) => db.withTransaction((tx) => db.inbox.receive(tx, { subscriber: 's', source: '/s', id: '1' })),
  'the script outbox': (db) => redisOutbox({ on: [db] }).enqueueAlone(sample(1)),
  async 'a relay'(db) {
    const reader = redisOutbox({ on: [db] }).reader({ ...READER, attempts: 25, clock: systemClock })
    const [source] = await reader.assignment()
    const session = await source!.open(new AbortController().signal)
    await session!.close()
  },
}

/** What is said when a store is used, by whatever it is used first. */
async function warnings(
  node: RedisNode,
  durability = {},
  begin = BEGINNINGS['a unit of work']!,
  client: (url: string) => object = ioredis,
): Promise<string[]> {
  const telemetry = recordTelemetry(['warning'])
  try {
    const db = storeOf(client(node.url), { durability })
    await begin(db)
    await begin(db)
    return telemetry.of('warning').map(({ where, message }) => {
      expect(where).toBe(`redis ${db.tag}`)
      return message
    })
  } finally {
    telemetry.stop()
  }
}

for (const version of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([version], `a store and what ${version} can lose`, () => {
    let alone: RedisNode
    let pair: Awaited<ReturnType<typeof replicated>>
    beforeAll(async () => {
      alone = await standalone({}, version)
      pair = await replicated({ version })
    })

    /** With a setting of the server, and back. */
    async function having<T>(node: RedisNode, name: string, value: string, look: () => Promise<T>): Promise<T> {
      const [, before] = (await admin(node).config('GET', name)) as [string, string]
      await admin(node).config('SET', name, value)
      try {
        return await look()
      } finally {
        await admin(node).config('SET', name, before)
      }
    }

    test('a server with AOF that deletes nothing by itself has nothing to say, and may be required', async () => {
      expect(await warnings(alone)).toEqual([])
      expect(await warnings(alone, { required: true })).toEqual([])
    })

    test('maxmemory-policy: a warning that names what of a store it deletes', async () => {
      expect(await having(alone, 'maxmemory-policy', 'allkeys-lru', () => warnings(alone))).toEqual([
        expect.stringMatching(/allkeys-lru: .*claims of the inbox, events of the outbox .*set noeviction/),
      ])
      expect(await having(alone, 'maxmemory-policy', 'volatile-ttl', () => warnings(alone))).toEqual([
        expect.stringMatching(/volatile-ttl: .*claims of the inbox, .*handled again; set noeviction/),
      ])
    })

    for (const [what, begin] of Object.entries(BEGINNINGS)) {
      for (const [driver, client] of Object.entries({ ioredis, 'node-redis': nodeRedis })) {
        test(`no AOF: ${what} warns once, and refuses where durability is required (${driver})`, async () => {
          await having(alone, 'appendonly', 'no', async () => {
            expect(await warnings(alone, {}, begin, client)).toEqual([
              expect.stringMatching(/what was committed, .*since the last snapshot is lost.*appendonly yes/),
            ])
            const strict = storeOf(client(alone.url), { durability: { required: true } })
            const refused = await begin(strict).catch((error: unknown) => error)
            const message = expect.stringMatching(/durability is required, but appendonly/)
            expect(refused).toMatchObject({ code: 'NOT_DURABLE', message })
            expect(classify(refused), 'no message is charged').toBe('down')
            expect(await admin(alone).keys(`{${strict.tag}}:*`), 'nothing is written').toEqual([])
            await admin(alone).config('SET', 'appendonly', 'yes')
            await begin(strict)
          })
          await admin(alone).config('SET', 'appendonly', 'yes')
        })
      }
    }

    test('AOF that is written to disk when the system likes: a warning that names what is lost', async () => {
      expect(await having(alone, 'appendfsync', 'no', () => warnings(alone))).toEqual([
        expect.stringMatching(/appendfsync is no: what was committed.*everysec/),
      ])
    })

    test('replicas that nobody waits for: a warning, and min-replicas-to-write is told for what it bounds', async () => {
      expect(await warnings(pair.master)).toEqual([
        expect.stringMatching(/a failover loses what was committed, .*set durability\.replicas/),
      ])
      expect(await warnings(pair.master, { replicas: 1, within: '30s', required: true })).toEqual([])
      const bounded = await having(pair.master, 'min-replicas-to-write', '1', () => warnings(pair.master))
      const how = version === 'redis' ? /of the 10 s that min-replicas-to-write allows/ : /does not hold for scripts/
      expect(bounded).toEqual([expect.stringMatching(how)])
    })

    test('what is written outside a unit of work waits for its replicas too', async () => {
      for (const replicas of [1, 2]) {
        const db = storeOf(ioredis(pair.master.url), { durability: { replicas, within: replicas === 1 ? '30s' : 300 } })
        const outbox = redisOutbox({ on: [db] })
        const due = redisDue({ outbox })
        const writes = [outbox.enqueueAlone(sample(1)), due.record({ id: 'offer-1', at: new Date(0) })]
        const lacking = { status: 'rejected', reason: { message: expect.stringMatching(/1 of 2 replicas/) } }
        for (const end of await Promise.allSettled(writes)) {
          expect(end).toMatchObject(replicas === 1 ? { status: 'fulfilled' } : lacking)
        }
      }
    })

    test('whoever may not ask is told so, and works', async () => {
      await admin(alone).call('ACL', 'SETUSER', 'shy', 'on', '>pw', '~*', '+@all', '-info', '-config')
      const url = new URL(alone.url)
      url.username = 'shy'
      url.password = 'pw'
      const db = storeOf(ioredis(url.href))
      const telemetry = recordTelemetry(['warning'])
      await db.withTransaction(async (tx) => tx.set(db.key('n'), 7))
      expect(telemetry.of('warning')).toEqual([
        expect.objectContaining({ message: expect.stringMatching(/could not be checked/) }),
      ])
      telemetry.stop()
      expect(await admin(alone).get(db.key('n'))).toBe('7')
      // What must not be lost is not written where nobody knows whether it can be.
      const strict = storeOf(ioredis(url.href), { durability: { required: true } })
      const refused = strict.withTransaction(async (tx) => tx.set(strict.key('n'), 7))
      await expect(refused).rejects.toMatchObject({
        code: 'NOT_DURABLE',
        message: expect.stringMatching(/could not be checked/),
      })
    })

    test('a server that is busy when it is looked at is looked at again, and what is required is asked for', async () => {
      const node = await standalone({ appendonly: 'no', 'lua-time-limit': '10' }, version)
      // A client that connects while the server is busy asks for INFO, is refused, and fails what waits for it.
      await admin(node).ping()
      const client = new Redis(node.url, { lazyConnect: true, enableReadyCheck: false })
      const db = storeOf(client, { durability: { required: true } })
      const write = () => db.withTransaction(async (tx) => tx.set(db.key('n'), 7))
      const endless = ioredis(node.url)
      const running = endless.eval('while true do end', 0).catch(() => {})
      await eventually('it is busy', async () => {
        const error = await admin(node)
          .ping()
          .catch((thrown: Error) => thrown.message)
        return /^BUSY/.test(error)
      })
      await expect(write()).rejects.toMatchObject({ code: 'UNAVAILABLE', message: expect.stringMatching(/BUSY/) })
      await admin(node).script('KILL')
      await running
      endless.disconnect()
      await expect(write()).rejects.toMatchObject({ code: 'NOT_DURABLE' })
      expect(await admin(node).exists(db.key('n'))).toBe(0)
    })
  })
}
