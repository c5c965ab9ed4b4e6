import { stat, truncate } from 'node:fs/promises'
import { afterEach, describe, expect, test } from 'vitest'
import { classify } from '../../src/core/index.ts'
import { outboxScripts } from '../../src/redis/scripts.ts'
import { crashPoints, everyPointHit, faultProxy, recordTelemetry, type ScriptResult } from '../../src/testing/index.ts'
import { samples } from '../../src/testing/outbox-probe.ts'
import { logOf, type RedisVersion, rewritten, standalone } from '../support/redis-topologies.ts'
import { scale } from '../support/scale.ts'
import { describeWith, service } from '../support/services.ts'
import { outboxOn, READER } from './outbox-support.ts'
import { mustCrash, type World, world } from './outbox-world.ts'
import { ioredis, storeOf, until } from './support.ts'

const worlds: World[] = []
afterEach(async () => {
  for (const one of worlds.splice(0)) await one.end()
})

function newWorld(url: string, shards = 1): World {
  const made = world(url, shards)
  worlds.push(made)
  return made
}

const RELAY = crashPoints([
  'before outbox-claim',
  'after outbox-claim',
  'relay.before-publish',
  'relay.after-publish',
  'before outbox-settle',
  'after outbox-settle',
])
const WRITER = crashPoints(['before commit', 'after commit', 'before outbox-enqueue', 'after outbox-enqueue'])
const servers = scale<RedisVersion[]>({ test: ['redis'], full: ['redis', 'redis6'], torture: ['redis', 'redis6'] })

for (const server of servers) {
  describeWith([server], `a process killed around each script, on ${server}`, () => {
    const results: ScriptResult[] = []

    test.each(RELAY)('relay, %s: nothing is lost, order per key is kept', { timeout: 120_000 }, async (point) => {
      const t = newWorld(service(server).url)
      await t.fill(30, 3)
      const relay = { lease: '1s', batch: 4, maxBatch: 4 } as const
      const child = t.child({ points: true, relay }, { at: `${point}#2` })
      const result = await child.finished
      mustCrash(result)
      results.push(result)
      await t.relay({ lease: '30s' }).start()
      await t.settled()
      // What had gone out and was not settled goes out again, at most two batches; nothing else.
      expect(await t.problems({ duplicates: 8 })).toEqual([])
    })

    test.each(WRITER)(
      'writer, %s: with the script everything, without it nothing',
      { timeout: 120_000 },
      async (point) => {
        const t = newWorld(service(server).url)
        const writer = t.child({ role: 'writer', points: true, count: 40 }, { at: `${point}#2` })
        const result = await writer.finished
        mustCrash(result)
        results.push(result)
        const ledger = await t.raw.smembers(t.stores[0]!.key('ledger'))
        const entries = await t.outbox.admin.list({}, { limit: 1000 })
        // Every fourth event is written alone, without a line in the ledger.
        const alone = entries.filter(({ eventId }) => !ledger.includes(eventId))
        expect(alone.length).toBe({ 'before outbox-enqueue': 1, 'after outbox-enqueue': 2 }[point as string] ?? 0)
        expect(ledger.length).toBe({ 'before commit': 1, 'after commit': 2 }[point as string] ?? 6)
        expect(entries.length - alone.length).toBe(ledger.length)
        expect(await t.outbox.repair().runOnce()).toEqual({ restored: 0, dropped: 0, released: 0, headed: 0 })
      },
    )

    test('every point was reached', () => everyPointHit([...RELAY, ...WRITER], known(results)))
  })
}

/** Only the points of the list: the children reach others too. */
function known(results: readonly ScriptResult[]) {
  const list: readonly string[] = [...RELAY, ...WRITER]
  return results.map(({ hits }) => ({ hits: hits.filter((hit) => list.includes(hit)) }))
}

for (const version of servers) {
  describeWith([version], `a redis outbox under faults, on ${version}`, () => {
    test('a relay suspended past its lease: another takes over, and what the first settles then changes nothing', {
      timeout: 120_000,
    }, async () => {
      const t = newWorld(service(version).url)
      await t.fill(40, 4)
      const relay = { lease: 1500, batch: 10, maxBatch: 10 }
      const first = t.child({ relay, delay: 300 })
      await until('the first has begun', () => t.journal.count('start', first.name) > 0)
      first.pause()
      const out = t.journal.count('start', first.name)
      const second = t.child({ relay })
      await until('the second has gone on', () => t.journal.count('ok', second.name) >= 30)
      await t.settled()
      const before = await t.raw.hgetallBuffer(`${t.base}:states`)
      first.resume()
      await until('the first knows', () =>
        t.journal
          .read()
          .some(({ relay, what, stale }) => relay === first.name && (what === 'lost' || (stale ?? 0) > 0)),
      )
      expect(await t.raw.hgetallBuffer(`${t.base}:states`)).toEqual(before)
      await t.fill(10, 4)
      await t.settled()
      expect(await t.problems({ zombies: [first.name], duplicates: out })).toEqual([])
      for (const child of [first, second]) {
        child.kill('SIGTERM')
        expect(await child.finished).toMatchObject({ code: 0 })
      }
    })

    test('a zombie’s marks change nothing, and are counted', async () => {
      const { outbox, db } = outboxOn(ioredis(service(version).url))
      await outbox.enqueueAlone(samples(3))
      const never = new AbortController().signal
      const session = async (lease: number) => (await outbox.reader({ ...READER, lease }).assignment())[0]!.open(never)
      const [zombie, next] = [await session(1000), await session(60_000)]
      const taken = await zombie!.take({ count: 3, bytes: 1e6 }, never)
      const again: (typeof taken)[number][] = []
      await until('the lease has run out', async () => {
        const more = await next!.take({ count: 3, bytes: 1e6 }, never)
        again.push(...more)
        return again.length > 0
      })
      const error = new Error('late')
      const settlements = [
        { kind: 'done' },
        { kind: 'retry', after: 0, charged: true, error },
        { kind: 'dead', reason: 'late', error },
      ] as const
      const read = () => db.connection.command(['hgetall', `{${db.tag}}:outbox:states`])
      const before = await read()
      expect(await zombie!.settle(taken.map((delivery, i) => [delivery, settlements[i]!]))).toBe(3)
      await zombie!.extend!(taken)
      expect(await read()).toEqual(before)
      await zombie!.close()
      await next!.close()
    })

    test('Redis restarted with its append-only file: what was committed is there, and nothing else', {
      timeout: 120_000,
    }, async () => {
      const server = await standalone({ appendonly: 'yes', appendfsync: 'always' }, version)
      const t = newWorld(server.url)
      const relay = t.relay({ lease: '1s', batch: 5, maxBatch: 5 }, undefined, 2)
      await relay.start()
      const errors: unknown[] = []
      for (let round = 0; round < scale({ test: 2, full: 6, torture: 20 }); round++) {
        const filling = t.fill(300, 5).catch((error: unknown) => void errors.push(error))
        await until('some have arrived', () => t.journal.arrived() > round * 100 + 20)
        await server.stop('kill')
        await server.start()
        // It may have been killed in the middle of a write.
        await rewritten(server)
        await filling
        await until('it can be reached', async () => {
          const stats = await t.outbox.admin.stats().catch(() => undefined)
          return stats !== undefined
        })
      }
      await t.fill(20, 5)
      await t.settled()
      await relay.stop()
      // That nobody was there, or that the answer got lost; never that a unit was applied in part.
      expect(errors.filter((error) => classify(error) !== 'down').map(String)).toEqual([])
      expect(await t.problems({ duplicates: 200 })).toEqual([])
      const ledger = await t.raw.smembers(t.stores[0]!.key('ledger'))
      expect((await t.outbox.admin.stats()).states.published.count).toBe(ledger.length)
      expect(await t.outbox.repair().runOnce()).toEqual({ restored: 0, dropped: 0, released: 0, headed: 0 })
    })

    test('killed in the middle of a write: nothing of the unit is there, nor at the next start once the log is rewritten', {
      timeout: 120_000,
    }, async () => {
      const server = await standalone({ appendonly: 'yes', appendfsync: 'always' }, version)
      const t = newWorld(server.url)
      const kept = async () => [
        await t.raw.scard(t.stores[0]!.key('ledger')),
        await t.raw.hlen(`${t.base}:entries`),
        await t.pending(),
      ]
      await t.fill(10, 1)
      const log = await logOf(server)
      const { size: before } = await stat(log)
      await t.fill(10, 1)
      expect(await kept()).toEqual([20, 20, 20])
      const { size: after } = await stat(log)
      await server.stop('kill')
      await truncate(log, before + Math.floor((after - before) / 2))
      await server.start()
      await rewritten(server)
      await until('it can be reached', async () => (await t.pending().catch(() => undefined)) !== undefined)
      expect(await kept()).toEqual([10, 10, 10])
      await t.fill(10, 1)
      await server.restart('kill')
      await until('it can be reached', async () => (await t.pending().catch(() => undefined)) !== undefined)
      expect(await kept()).toEqual([20, 20, 20])
      expect(await t.outbox.repair().runOnce()).toEqual({ restored: 0, dropped: 0, released: 0, headed: 0 })
    })

    describe('the connection is cut between a command and its answer', () => {
      const cut = async () => {
        // One of its own: others make the shared one forget its scripts.
        const { url } = await standalone({}, version)
        const { hostname, port } = new URL(url)
        const proxy = await faultProxy({ host: hostname, port: Number(port) })
        const db = storeOf(ioredis(proxy.url(url)), { timeout: 2000 })
        const { outbox: direct } = outboxOn(ioredis(url), {}, { tag: db.tag })
        const { outbox } = outboxOn(ioredis(proxy.url(url)), {}, { tag: db.tag, timeout: 2000 })
        // It has seen every script: what gets lost is then the answer to it, not to the question whether it is known.
        await direct.enqueueAlone(samples(1))
        const never = new AbortController().signal
        const session = await (await direct.reader({ ...READER, deletes: true }).assignment())[0]!.open(never)
        const taken = await session!.take({ count: 1, bytes: 1e6 }, never)
        await session!.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))
        await session!.close()
        return { proxy, db, outbox, direct }
      }

      test('enqueue: whoever calls again writes nothing twice', async () => {
        const { proxy, outbox, direct } = await cut()
        await using _ = proxy
        await outbox.enqueueAlone(samples(1))
        const events = samples(3, { key: 'a' })
        proxy.halfOpen('downstream')
        await expect(outbox.enqueueAlone(events)).rejects.toThrow()
        await proxy.restore()
        expect(await direct.admin.list()).toHaveLength(4)
        const seen = recordTelemetry(['outbox.enqueued'])
        expect(await outbox.enqueueAlone(events)).toHaveLength(3)
        seen.stop()
        expect(seen.of('outbox.enqueued')).toMatchObject([{ count: 0, duplicates: 3 }])
        expect(await direct.admin.list()).toHaveLength(4)
      })

      test('claim: what was claimed without a hearer is taken back at once, uncharged', async () => {
        const { proxy, outbox, direct } = await cut()
        await using _ = proxy
        const events = samples(2)
        await direct.enqueueAlone(events)
        const never = new AbortController().signal
        const session = await (await outbox.reader({ ...READER, lease: 60_000 }).assignment())[0]!.open(never)
        const cutOff = proxy.cutAfter(1, 'downstream')
        await expect(session!.take({ count: 5, bytes: 1e6 }, never)).rejects.toThrow()
        expect(await cutOff).toBe(true)
        expect((await direct.admin.stats()).states.leased.count).toBe(2)
        const again: string[] = []
        await until('they come again', async () => {
          // A connection that is being made anew may refuse once more; whoever takes asks again, as a flow does.
          const taken = await session!.take({ count: 5, bytes: 1e6 }, never).catch(() => [])
          expect(await session!.settle(taken.map((delivery) => [delivery, { kind: 'done' }]))).toBe(0)
          again.push(...taken.map(({ message }) => message.id))
          expect(taken.filter(({ attempts }) => attempts > 0)).toEqual([])
          return again.length === 2
        })
        expect(again.sort()).toEqual(events.map(({ id }) => id).sort())
        await session!.close()
      })

      test('claim: what a server that hung claims late, after that was looked for, is taken back too', async () => {
        const { proxy, outbox, direct } = await cut()
        await using _ = proxy
        const never = new AbortController().signal
        const session = await (await outbox.reader({ ...READER, lease: 60_000 }).assignment())[0]!.open(never)
        const take = () => session!.take({ count: 5, bytes: 1e6 }, never)
        const cutOff = proxy.cutAfter(1, 'downstream')
        await expect(take()).rejects.toThrow()
        expect(await cutOff).toBe(true)
        await until('it has been looked for', () =>
          take().then(
            () => true,
            () => false,
          ),
        )
        const events = samples(2)
        await direct.enqueueAlone(events)
        // As the server would, under the token of that claim.
        const [token] = outbox.shards.all[0]!.abandoned.keys()
        const claim = [token ?? '', '60000', '5', '1000000', '25', '5', '0']
        await direct.shards.all[0]!.run(outboxScripts.claim, claim)
        expect((await direct.admin.stats()).states.leased.count).toBe(2)
        const again: (readonly [string, number])[] = []
        await until('they come', async () => {
          again.push(...(await take()).map(({ message: { id }, attempts }) => [id, attempts] as const))
          return again.length === 2
        })
        expect(again.sort()).toEqual(events.map(({ id }) => [id, 0]).sort())
        await session!.close()
      })

      test('settle: settled again it is stale, and nothing is sent twice', async () => {
        const { proxy, outbox, direct } = await cut()
        await using _ = proxy
        await direct.enqueueAlone(samples(3))
        const never = new AbortController().signal
        const session = await (await outbox.reader({ ...READER, lease: 6000 }).assignment())[0]!.open(never)
        const taken = await session!.take({ count: 5, bytes: 1e6 }, never)
        const batch = taken.map((delivery) => [delivery, { kind: 'done' }] as const)
        proxy.halfOpen('downstream')
        await expect(session!.settle(batch)).rejects.toThrow()
        await proxy.restore()
        let stale: number | undefined
        await until('it answers', async () => {
          stale = await session!.settle(batch).catch(() => undefined)
          return stale !== undefined
        })
        expect(stale).toBe(3)
        expect((await direct.admin.stats()).states.published.count).toBe(3)
        await session!.close()
      })
    })

    test('scripts that the server has forgotten are sent again', async () => {
      const server = await standalone({}, version)
      const t = newWorld(server.url)
      const relay = t.relay()
      await relay.start()
      for (let round = 0; round < 5; round++) {
        await t.fill(10, 2)
        await t.raw.script('FLUSH')
      }
      await t.settled()
      expect(await t.problems()).toEqual([])
    })

    test('relays in several processes over thousands of events: order per key, nothing twice in flight', {
      timeout: 300_000,
    }, async () => {
      const size = scale({
        test: { count: 1500, relays: 2 },
        full: { count: 5000, relays: 8 },
        torture: { count: 200_000, relays: 8 },
      })
      const t = newWorld(service(version).url, 2)
      const children = Array.from({ length: size.relays }, () => t.child({ relay: { batch: 20, maxBatch: 50 } }))
      await Promise.all(children.map((child) => child.line('started', 60_000)))
      await t.fill(size.count, 60)
      await t.settled(240_000)
      expect(await t.problems()).toEqual([])
      expect(t.journal.arrived()).toBe(size.count)
      const busy = children.filter(({ name }) => t.journal.count('ok', name) > 0)
      expect(busy.length).toBeGreaterThan(1)
    })
  })
}
