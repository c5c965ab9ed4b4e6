import type { Redis as IoRedis } from 'ioredis'
import { beforeAll, describe, expect, test } from 'vitest'
import { classify } from '../../src/core/index.ts'
import { redisOf } from '../../src/drivers/redis/recognise.ts'
import type { RedisClient } from '../../src/drivers/redis/redis.ts'
import { CALL_LIMIT, CallBatcher } from '../../src/redis/call-batcher.ts'
import { redisOutbox } from '../../src/redis/index.ts'
import { faultProxy, recordTelemetry } from '../../src/testing/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { admin, type RedisVersion, standalone } from '../support/redis-topologies.ts'
import { describeWith, service } from '../support/services.ts'
import { ioredis, keysOf, nodeRedis, reader, storeOf } from './support.ts'

/** A client that notes which scripts it runs, with how many keys. */
function noting(client: object): { client: RedisClient; calls: { script: string; keys: number; args: number }[] } {
  const real = redisOf(client)
  const calls: { script: string; keys: number; args: number }[] = []
  const connect: RedisClient['connect'] = async (options) => {
    const connection = await real.connect(options)
    return {
      get lost() {
        return connection.lost
      },
      command: (args, options) => connection.command(args, options),
      pipeline: (commands, options) => connection.pipeline(commands, options),
      close: () => connection.close(),
      script(script, keys, args) {
        calls.push({ script: script.name, keys: keys.length, args: args.length })
        return connection.script(script, keys, args)
      },
    }
  }
  return { client: { driver: real.driver, cluster: real.cluster, keyPrefix: real.keyPrefix, connect }, calls }
}

const message = (id: string) => ({ subscriber: 's', source: '/s', id })

describe('what goes together', () => {
  const itself = (answer: number) => answer

  /** Answers each with itself; `calls` are what went in one. */
  function echo(fail: (items: readonly number[]) => boolean = () => false) {
    const calls: (readonly number[])[] = []
    const together = new CallBatcher<number, number>(async (items) => {
      calls.push(items)
      if (fail(items)) throw new Error(`call ${calls.length}`)
      return items
    })
    return { together, calls }
  }

  test('what is asked in one turn is one call, in its order; later ones do not wait for its answer', async () => {
    const { together, calls } = echo()
    expect(await Promise.all([1, 2, 3].map((n) => together.ask(n, 1, itself)))).toEqual([1, 2, 3])
    expect(await together.ask(4, 1, itself)).toBe(4)
    expect(calls).toEqual([[1, 2, 3], [4]])
    const stuck = new CallBatcher<number, number>(() => new Promise(() => {}))
    const never = stuck.ask(1, 1, itself)
    await new Promise(setImmediate)
    expect(await Promise.race([never, echo().together.ask(2, 1, itself)])).toBe(2)
  })

  test('many with nothing on its way go in two calls, of which the first is answered first', async () => {
    const line = { calls: 0 }
    const calls: (readonly number[])[] = []
    const answer: (() => void)[] = []
    const together = new CallBatcher<number, number>((items) => {
      calls.push(items)
      return new Promise((resolve) => {
        answer.push(() => resolve(items))
      })
    }, line)
    const turn = () => new Promise(setImmediate)
    const numbers = (count: number) => Array.from({ length: count }, (_, n) => n)
    const sixteen = numbers(16).map((n) => together.ask(n, 1, itself))
    await turn()
    expect(calls).toEqual([numbers(8), numbers(16).slice(8)])
    answer[0]!()
    expect(await Promise.all(sixteen.slice(0, 8))).toEqual(numbers(8))
    expect(line.calls).toBe(1)
    // The other call is on its way: nobody waits for anybody, so that one is enough.
    const more = numbers(16).map((n) => together.ask(n, 1, itself))
    await turn()
    expect(calls[2]).toEqual(numbers(16))
    answer[1]!()
    answer[2]!()
    expect(await Promise.all([...sixteen, ...more])).toEqual([...numbers(16), ...numbers(16)])
    expect(line.calls).toBe(0)
    const few = numbers(8).map((n) => together.ask(n, 1, itself))
    await turn()
    answer[3]!()
    expect(await Promise.all(few)).toEqual(numbers(8))
    expect(calls).toHaveLength(4)
  })

  test('a call is bounded by count and by bytes; what is larger goes alone', async () => {
    const { together, calls } = echo()
    const { count, bytes } = CALL_LIMIT
    await Promise.all(Array.from({ length: 2 * count + 1 }, (_, n) => together.ask(n, 1, itself)))
    expect(calls.map(({ length }) => length)).toEqual([count, count, 1])
    calls.length = 0
    const sizes = [1, bytes - 1, 1, bytes + 1, bytes, 1, 1]
    await Promise.all(sizes.map((size, n) => together.ask(n, size, itself)))
    expect(calls).toEqual([[0, 1], [2], [3], [4], [5, 6]])
  })

  test('a call that fails is that of those in it', async () => {
    const { together } = echo((items) => items.includes(0))
    const asked = Array.from({ length: CALL_LIMIT.count + 2 }, (_, n) => together.ask(n, 1, itself))
    const ended = await Promise.allSettled(asked)
    expect(ended.slice(0, CALL_LIMIT.count).every(({ status }) => status === 'rejected')).toBe(true)
    expect(ended.slice(CALL_LIMIT.count)).toEqual(
      [64, 65].map((value) => ({ status: 'fulfilled', value: value - 64 + CALL_LIMIT.count })),
    )
  })
})

for (const server of ['redis', 'redis6'] as RedisVersion[]) {
  for (const [driver, made] of Object.entries({ ioredis, 'node-redis': nodeRedis })) {
    describeWith([server], `units that commit together on ${server} with ${driver}`, () => {
      let url: string
      let look: IoRedis
      beforeAll(() => {
        url = service(server).url
        look = reader(url)
      })

      test('each is fenced, checked and answered on its own: what ends one leaves the others', async () => {
        const { client, calls } = noting(made(url))
        const db = storeOf(client)
        const outbox = redisOutbox({ on: [db] })
        const mark = (id: string) => db.key(`inbox:["s","/s","${id}"]`)
        await look.rpush(db.key('a-list'), 'x')
        await look.set(db.key('word'), 'no number')
        // All begin together, and commit together.
        let arrived = 0
        let go!: () => void
        const all = new Promise<void>((resolve) => {
          go = resolve
        })
        const names = ['fine', 'fenced', 'wrong type', 'fails', 'raises', 'step', 'refused', 'last']
        const unit = (name: string) =>
          db.withTransaction(async (tx) => {
            expect(await db.inbox.receive(tx, message(name))).toBe('new')
            tx.incr(db.key(`first ${name}`))
            if (name === 'wrong type') tx.hset(db.key('a-list'), 'f', 'v')
            if (name === 'fails') tx.incr(db.key('word'))
            if (name === 'step') await outbox.enqueue(tx, sample(1))
            if (name === 'refused') tx.command('XADD', db.key('stream'), 'not an id', 'f', 'v')
            tx.rpush(db.key('done'), name)
            arrived++
            if (arrived === names.length) {
              await look.set(mark('fenced'), 'processing another')
              await look.del(mark('raises'))
              await look.rpush(mark('raises'), 'x')
              calls.length = 0
              go()
            }
            await all
          })
        const ended = await Promise.allSettled(names.map(unit))
        const codes = ended.map((end) => (end.status === 'fulfilled' ? 'committed' : end.reason.code))
        expect(Object.fromEntries(names.map((name, at) => [name, codes[at]]))).toEqual({
          fine: 'committed',
          fenced: 'LEASE_LOST',
          'wrong type': 'WRONG_KEY_TYPE',
          fails: 'PARTLY_APPLIED',
          raises: 'REDIS_ERROR',
          step: 'committed',
          refused: 'PARTLY_APPLIED',
          last: 'committed',
        })
        expect(calls.filter(({ script }) => script === 'commit')).toHaveLength(1)
        expect((await look.lrange(db.key('done'), 0, -1)).sort()).toEqual(['fine', 'last', 'step'])
        const firsts = await Promise.all(names.map((name) => look.exists(db.key(`first ${name}`))))
        expect(firsts).toEqual([1, 0, 0, 1, 0, 1, 1, 1])
        expect(await look.get(mark('fine'))).toBe('done')
        expect(await look.get(mark('step'))).toBe('done')
        expect(await look.get(mark('last'))).toBe('done')
        expect(await look.get(mark('fenced'))).toBe('processing another')
        expect(await look.get(mark('fails'))).toMatch(/^partly 2 /)
        expect(await look.exists(mark('wrong type'))).toBe(0)
        expect(await look.type(mark('raises'))).toBe('list')
        expect(await look.hlen(db.key('outbox:entries'))).toBe(1)
        // Its lease has not ended: Redis must have lost it.
        expect(classify((ended[1] as PromiseRejectedResult).reason)).toBe('down')
      })

      test('messages are received together, each with an answer of its own, and one at once by one only', async () => {
        const { client, calls } = noting(made(url))
        const db = storeOf(client)
        const mark = (id: string) => db.key(`inbox:["s","/s","${id}"]`)
        await look.set(mark('done'), 'done')
        await look.set(mark('partly'), 'partly 2 …')
        await look.set(mark('busy'), 'processing another')
        await look.rpush(mark('list'), 'x')
        const ids = ['new', 'done', 'partly', 'busy', 'list', 'twice', 'twice', 'other']
        const ended = await Promise.allSettled(
          ids.map((id) => db.withTransaction((tx) => db.inbox.receive(tx, message(id)))),
        )
        const answers = ended.map((end) => (end.status === 'fulfilled' ? end.value : end.reason.code))
        expect(answers).toEqual(['new', 'done', 'PARTLY_APPLIED', 'busy', 'WRONG_KEY_TYPE', 'new', 'busy', 'new'])
        expect(calls.filter(({ script }) => script === 'receive')).toEqual([{ script: 'receive', keys: 8, args: 2 }])
        expect(await look.get(mark('busy'))).toBe('processing another')
        expect(await look.get(mark('other'))).toBe('done')
        expect(await look.pttl(mark('other'))).toBeGreaterThan(3_600_000)
      })

      test('many at once go in bounded calls, and a large unit goes alone', async () => {
        const { client, calls } = noting(made(url))
        const db = storeOf(client)
        await db.withTransaction(async (tx) => tx.set(db.key('warm'), 1))
        calls.length = 0
        const large = 'x'.repeat(CALL_LIMIT.bytes)
        await Promise.all(
          Array.from({ length: 200 }, (_, n) =>
            db.withTransaction(async (tx) => {
              tx.sadd(db.key('set'), n)
              if (n === 100) tx.set(db.key('large'), large)
            }),
          ),
        )
        // One key each, and two of the large one; and in each call the one that never exists.
        expect(calls.map(({ keys }) => keys)).toEqual([65, 37, 3, 65, 36])
        expect(await look.scard(db.key('set'))).toBe(200)
        expect(await look.strlen(db.key('large'))).toBe(large.length)
      })

      test('the answer of a call is lost: each of its units is unknown, and comes again to be found done', async () => {
        const { hostname, port } = new URL(url)
        await using proxy = await faultProxy({ host: hostname, port: Number(port) })
        const db = storeOf(made(proxy.url(url)), { timeout: 2000 })
        const ids = Array.from({ length: 20 }, (_, n) => `m${n}`)
        const handle = (id: string, before?: () => Promise<void>) =>
          db.withTransaction(async (tx) => {
            const answer = await db.inbox.receive(tx, message(id))
            if (answer === 'new') tx.incr(db.key(`count ${id}`))
            await before?.()
            return answer
          })
        await handle('warm')
        let waiting = 0
        let cut: Promise<unknown> | undefined
        let go!: () => void
        const all = new Promise<void>((resolve) => {
          go = resolve
        })
        const first = await Promise.allSettled(
          ids.map((id) =>
            handle(id, async () => {
              if (++waiting === ids.length) {
                cut = proxy.cutAfter(1, 'downstream')
                go()
              }
              await all
            }),
          ),
        )
        await cut
        for (const end of first) {
          expect(end).toMatchObject({ status: 'rejected', reason: { code: 'COMMIT_UNKNOWN' } })
          expect(classify((end as PromiseRejectedResult).reason)).toBe('down')
        }
        expect(await Promise.all(ids.map((id) => handle(id)))).toEqual(ids.map(() => 'done'))
        expect(await look.mget(ids.map((id) => db.key(`count ${id}`)))).toEqual(ids.map(() => '1'))
        const marks = (await keysOf(look, db.tag)).filter((key) => key.includes('inbox:'))
        expect(marks).toHaveLength(ids.length + 1)
      })

      test('events that are enqueued alone at once share bounded calls, and what was there is left as it is', async () => {
        const { client, calls } = noting(made(url))
        const outbox = redisOutbox({ on: [storeOf(client)] })
        const events = Array.from({ length: 100 }, (_, n) => sample(n, { key: `k${n % 7}` }))
        await outbox.enqueueAlone(events[0]!)
        calls.length = 0
        const told = recordTelemetry(['outbox.enqueued'])
        const ids = await Promise.all(events.map((event) => outbox.enqueueAlone(event)))
        told.stop()
        expect(ids).toEqual(events.map(({ id }) => id))
        expect(calls.map(({ args }) => args / 5)).toEqual([CALL_LIMIT.count, 100 - CALL_LIMIT.count])
        const sums = told.of('outbox.enqueued').map(({ count, duplicates }) => [count, duplicates])
        expect(sums).toEqual([
          [CALL_LIMIT.count - 1, 1],
          [100 - CALL_LIMIT.count, 0],
        ])
        const listed = await outbox.admin.list({ key: 'k3' })
        expect(listed.map(({ eventId }) => eventId).sort()).toEqual(
          events
            .filter(({ key }) => key === 'k3')
            .map(({ id }) => id)
            .sort(),
        )
      })

      test('scripts that the server has forgotten are sent again, once for all', async () => {
        // One of its own: others rely on what the shared one has seen.
        const node = await standalone({}, server)
        const { client } = noting(made(node.url))
        const db = storeOf(client)
        const outbox = redisOutbox({ on: [db] })
        await db.withTransaction(async (tx) => tx.set(db.key('warm'), 1))
        await admin(node).script('FLUSH')
        const ended = await Promise.all(
          Array.from({ length: 10 }, (_, n) =>
            db.withTransaction(async (tx) => {
              await db.inbox.receive(tx, message(`m${n}`))
              tx.incr(db.key('count'))
              if (n % 2 === 0) await outbox.enqueue(tx, sample(n))
            }),
          ),
        )
        expect(ended).toHaveLength(10)
        expect(await admin(node).get(db.key('count'))).toBe('10')
      })
    })
  }
}
