import { beforeAll, expect, test } from 'vitest'
import { type Clock, classify, systemClock } from '../../src/core/index.ts'
import type { InboxKey } from '../../src/store/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { admin, type RedisVersion, standalone } from '../support/redis-topologies.ts'
import { describeWith, service } from '../support/services.ts'
import { ioredis, keysOf, reader, storeOf, until } from './support.ts'

const key = (id: string, subscriber = 'billing', source = '/shop'): InboxKey => ({ subscriber, source, id })

for (const server of ['redis', 'redis6'] as RedisVersion[]) {
  describeWith([server], `the inbox on ${server}`, () => {
    let url: string
    beforeAll(() => {
      url = service(server).url
    })
    const look = () => reader(url)

    test('a mark is leased while the work goes on, and done for the retention with it', async () => {
      const db = storeOf(ioredis(url))
      const mark = db.key('inbox:["billing","/shop","1"]')
      await db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, key('1'))).toBe('new')
        expect(await look().get(mark)).toMatch(/^processing [\w-]{16}-\w+$/)
        expect(await look().pttl(mark)).toBeGreaterThan(25_000)
        expect(await look().pttl(mark)).toBeLessThanOrEqual(30_000)
        tx.incr(db.key('count'))
      })
      expect(await look().get(mark)).toBe('done')
      expect(await look().pttl(mark)).toBeGreaterThan(24 * 3_600_000 - 60_000)
      expect(await look().pttl(mark)).toBeLessThanOrEqual(24 * 3_600_000)
      expect(await look().get(db.key('count'))).toBe('1')
    })

    test('after the retention a message is new again', async () => {
      const db = storeOf(ioredis(url), { inbox: { retention: 150 } })
      const receive = () => db.withTransaction((tx) => db.inbox.receive(tx, key('1')))
      expect(await receive()).toBe('new')
      expect(await receive()).toBe('done')
      await until('it is forgotten', async () => (await keysOf(look(), db.tag)).length === 0)
      expect(await receive()).toBe('new')
      expect(await db.inbox.clean()).toBe(0)
    })

    test('a handler that fails gives its mark up at once', async () => {
      const db = storeOf(ioredis(url))
      const failing = db.withTransaction(async (tx) => {
        await db.inbox.receive(tx, key('1'))
        tx.incr(db.key('count'))
        throw new Error('no')
      })
      await expect(failing).rejects.toThrow('no')
      expect(await keysOf(look(), db.tag)).toEqual([])
    })

    test('whoever was told to give up keeps nobody waiting, and cannot commit any more', async () => {
      const db = storeOf(ioredis(url))
      const abort = new AbortController()
      const zombie = db.withTransaction(async (tx) => {
        await db.inbox.receive(tx, key('1'), abort.signal)
        tx.incr(db.key('count'))
        abort.abort()
        await until('the mark is gone', async () => (await keysOf(look(), db.tag)).length === 0)
      })
      await expect(zombie).rejects.toMatchObject({ code: 'LEASE_LOST' })
      const aborted = db.withTransaction((tx) => db.inbox.receive(tx, key('1'), abort.signal))
      await expect(aborted).rejects.toThrow(/aborted/)
      expect(await keysOf(look(), db.tag)).toEqual([])
    })

    test('work renews its mark for as long as it takes, and another is told to come later', async () => {
      const clock = new FakeClock()
      const db = storeOf(ioredis(url), { inbox: { lease: 60_000 }, clock })
      const other = storeOf(ioredis(url), { tag: db.tag })
      await db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, key('1'))).toBe('new')
        const [mark] = await keysOf(look(), db.tag)
        for (let n = 0; n < 5; n++) {
          // A third of it has passed, for the server too.
          await look().pexpire(mark!, 40_000)
          await clock.advance(20_000)
          await until('it is renewed', async () => (await look().pttl(mark!)) > 50_000)
          expect(await other.withTransaction((its) => other.inbox.receive(its, key('1')))).toBe('busy')
        }
        tx.incr(db.key('count'))
      })
      expect(await look().get(db.key('count'))).toBe('1')
      expect(await other.withTransaction((its) => other.inbox.receive(its, key('1')))).toBe('done')
    })

    test('many marks are renewed together, and one that is lost is not fought for', async () => {
      const clock = new FakeClock()
      const db = storeOf(ioredis(url), { inbox: { lease: 60_000 }, clock })
      const count = 1100
      const failing = db.withTransaction(async (tx) => {
        for (let i = 0; i < count; i++) await db.inbox.receive(tx, key(String(i)))
        const marks = await keysOf(look(), db.tag)
        const shorten = look().pipeline()
        for (const mark of marks) shorten.pexpire(mark, 30_000)
        await shorten.exec()
        await look().set(marks[7]!, 'processing other')
        await clock.advance(20_000)
        await until('they are renewed', async () => (await look().pttl(marks.at(-1)!)) > 50_000)
        expect(await look().pttl(marks[0]!)).toBeGreaterThan(50_000)
        expect(await look().get(marks[7]!)).toBe('processing other')
      })
      await expect(failing).rejects.toMatchObject({ code: 'LEASE_LOST' })
      expect(await keysOf(look(), db.tag)).toHaveLength(1)
    })

    test('a claim that somebody put another type of key over costs no other its renewal, nor its release', async () => {
      const clock = new FakeClock()
      const db = storeOf(ioredis(url), { inbox: { lease: 60_000 }, clock })
      const telemetry = recordTelemetry(['warning', 'task.failed'])
      const failing = db.withTransaction(async (tx) => {
        for (const id of ['1', '2', '3']) await db.inbox.receive(tx, key(id))
        const marks = (await keysOf(look(), db.tag)).sort()
        for (const mark of marks) await look().pexpire(mark, 30_000)
        await look().del(marks[0]!)
        await look().rpush(marks[0]!, 'x')
        await clock.advance(20_000)
        await until('the others are renewed', async () => (await look().pttl(marks[2]!)) > 50_000)
        throw new Error('no use')
      })
      await expect(failing).rejects.toThrow('no use')
      expect(await keysOf(look(), db.tag), 'what is somebody else’s stays, ours are gone').toHaveLength(1)
      expect([...telemetry.of('warning'), ...telemetry.of('task.failed')]).toEqual([])
      telemetry.stop()
    })

    test("a zombie's commit changes nothing and is counted, whether another has the message, did it, or nobody has", async () => {
      const recorder = recordTelemetry(['inbox.fenced'])
      for (const after of ['taken over', 'done elsewhere', 'nobody']) {
        // Nobody renews: the process is suspended.
        let passed = 0
        const sleep: Clock['sleep'] = (_, signal) =>
          new Promise((resolve) => signal?.addEventListener('abort', () => resolve()))
        const clock: Clock = { ...systemClock, monotonic: () => passed, sleep }
        const db = storeOf(ioredis(url), { inbox: { lease: 100 }, clock })
        const other = storeOf(ioredis(url), { tag: db.tag })
        const mark = db.key('inbox:["billing","/shop","1"]')
        const zombie = db.withTransaction(async (tx) => {
          await db.inbox.receive(tx, key('1'))
          tx.incr(db.key('count'))
          await db.outbox.enqueue(tx, [])
          await until('the lease is over', async () => (await look().exists(mark)) === 0)
          passed = 100
          if (after === 'taken over') await look().set(mark, 'processing another')
          if (after === 'done elsewhere') {
            await other.withTransaction(async (its) => {
              expect(await other.inbox.receive(its, key('1'))).toBe('new')
              its.incr(db.key('count'))
            })
          }
        })
        const error = await zombie.catch((caught) => caught)
        expect(error).toMatchObject({ code: 'LEASE_LOST', message: expect.stringMatching(/nothing was written/) })
        expect(classify(error)).toBe('transient')
        expect(await look().get(db.key('count'))).toBe(after === 'done elsewhere' ? '1' : null)
        expect(await look().get(mark)).toBe(
          { 'taken over': 'processing another', 'done elsewhere': 'done', nobody: null }[after],
        )
        expect(recorder.of('inbox.fenced').at(-1)).toEqual({ store: db.tag, key: mark })
      }
      expect(recorder.of('inbox.fenced')).toHaveLength(3)
      recorder.stop()
    })

    test('a claim that Redis has lost costs no attempt: before its end, or while it could not be renewed', async () => {
      const node = await standalone({}, server)
      const look = admin(node)
      const clock = new FakeClock()
      const db = storeOf(ioredis(node.url), { inbox: { lease: 60_000 }, clock })
      const [mark, other] = ['1', '2'].map((id) => db.key(`inbox:["billing","/shop","${id}"]`)) as [string, string]
      const verdictAfter = async (what: () => Promise<unknown>) => {
        const error = await db
          .withTransaction(async (tx) => {
            for (const id of ['1', '2']) expect(await db.inbox.receive(tx, key(id))).toBe('new')
            tx.incr(db.key('count'))
            await what()
          })
          .catch((caught: unknown) => caught)
        expect(error).toMatchObject({ code: 'LEASE_LOST', message: expect.stringMatching(/nothing was written/) })
        return classify(error)
      }
      const renewed = async () => {
        await look.pexpire(other, 40_000)
        await clock.advance(20_000)
        await until('it is renewed', async () => (await look.pttl(other)) > 50_000)
      }
      expect(await verdictAfter(() => look.del(mark))).toBe('down')
      const seenByRenewal = async () => {
        await look.del(mark)
        for (let n = 0; n < 4; n++) await renewed()
      }
      expect(await verdictAfter(seenByRenewal)).toBe('down')
      const refused = recordTelemetry(['task.failed'])
      const refusedUntilTheEnd = async () => {
        await look.call('replicaof', '127.0.0.1', '1')
        for (let n = 1; n <= 4; n++) {
          const before = refused.of('task.failed').length
          await clock.advance(20_000)
          await until('it was refused again', () => refused.of('task.failed').length > before)
        }
        await look.call('replicaof', 'no', 'one')
        await look.del(mark)
        for (let n = 0; n < 4; n++) await renewed()
      }
      expect(await verdictAfter(refusedUntilTheEnd)).toBe('down')
      refused.stop()
      expect(await look.exists(db.key('count'))).toBe(0)
    })

    test('whoever ends late takes no renewal from who has the message by now, in the same process', async () => {
      const clock = new FakeClock()
      const db = storeOf(ioredis(url), { inbox: { lease: 60_000 }, clock })
      const mark = db.key('inbox:["billing","/shop","1"]')
      const abort = new AbortController()
      let end!: () => void
      const ended = new Promise<void>((resolve) => {
        end = resolve
      })
      const late = db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, key('1'), abort.signal)).toBe('new')
        abort.abort()
        await ended
        throw new Error('too late')
      })
      await until('it was given up', async () => abort.signal.aborted && (await look().exists(mark)) === 0)
      await db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, key('1'))).toBe('new')
        end()
        await expect(late).rejects.toThrow('too late')
        await look().pexpire(mark, 40_000)
        await clock.advance(20_000)
        await until('it is renewed', async () => (await look().pttl(mark)) > 50_000)
      })
      expect(await look().get(mark)).toBe('done')
    })

    test('work applied in part is not done again by itself, until a person says so', async () => {
      const db = storeOf(ioredis(url))
      await look().set(db.key('word'), 'no number')
      const handle = () =>
        db.withTransaction(async (tx) => {
          if ((await db.inbox.receive(tx, key('1'))) !== 'new') return
          tx.incr(db.key('count'))
          tx.incr(db.key('word'))
        })
      await expect(handle()).rejects.toMatchObject({ code: 'PARTLY_APPLIED' })
      const again = await handle().catch((caught) => caught)
      expect(again).toMatchObject({
        code: 'PARTLY_APPLIED',
        message: expect.stringMatching(/an earlier attempt was applied in part .*ERR value is not an integer/),
      })
      expect(classify(again)).toBe('permanent')
      expect(await look().get(db.key('count'))).toBe('1')
      await look().set(db.key('word'), '5')
      await look().decr(db.key('count'))
      expect(await db.inbox.forget(key('1'))).toBe(true)
      expect(await db.inbox.forget(key('1'))).toBe(false)
      await handle()
      expect(await look().mget(db.key('count'), db.key('word'))).toEqual(['1', '6'])
    })

    test('the name of a mark can be chosen', async () => {
      const db = storeOf(ioredis(url), { inbox: { key: ({ subscriber, id }) => `${subscriber}:${id}` } })
      await db.withTransaction((tx) => db.inbox.receive(tx, key('1', 'billing', '/a')))
      expect(await keysOf(look(), db.tag)).toEqual([db.key('inbox:billing:1')])
      expect(await db.withTransaction((tx) => db.inbox.receive(tx, key('1', 'billing', '/b')))).toBe('done')
      const bad = storeOf(ioredis(url), { inbox: { key: () => '' } })
      const failing = bad.withTransaction((tx) => bad.inbox.receive(tx, key('1')))
      await expect(failing).rejects.toMatchObject({ code: 'INVALID_OPTION' })
    })

    test('a key of another type under the name of a mark is told, and is of nobody else', async () => {
      const db = storeOf(ioredis(url))
      await look().rpush(db.key('inbox:["billing","/shop","1"]'), 'x')
      const error = await db.withTransaction((tx) => db.inbox.receive(tx, key('1'))).catch((caught: unknown) => caught)
      expect(error).toMatchObject({ code: 'WRONG_KEY_TYPE', message: expect.stringMatching(/no claim of ours/) })
      expect(classify(error)).toBe('permanent')
      expect(await db.withTransaction((tx) => db.inbox.receive(tx, key('2')))).toBe('new')
      await look().set(db.key('inbox:["billing","/shop","3"]'), 'what somebody wrote')
      const foreign = db.withTransaction((tx) => db.inbox.receive(tx, key('3')))
      await expect(foreign).rejects.toMatchObject({ code: 'WRONG_KEY_TYPE' })
    })

    test('scripts that the server has forgotten are sent again', async () => {
      // One of its own: others rely on what the shared one has seen.
      const node = await standalone({}, server)
      const db = storeOf(ioredis(node.url))
      await db.withTransaction(async (tx) => {
        await admin(node).script('FLUSH')
        expect(await db.inbox.receive(tx, key('1'))).toBe('new')
        tx.incr(db.key('count'))
        await admin(node).script('FLUSH')
      })
      expect(await admin(node).get(db.key('count'))).toBe('1')
    })

    test('once() runs it unless it was handled', async () => {
      const db = storeOf(ioredis(url))
      const once = () => db.withTransaction((tx) => db.inbox.once(tx, 's', { source: '/s', id: '1' }, () => 'value'))
      expect(await once()).toEqual({ skipped: false, value: 'value' })
      expect(await once()).toEqual({ skipped: true })
      const other = storeOf(ioredis(url), { tag: db.tag })
      await db.withTransaction(async (tx) => {
        await db.inbox.receive(tx, key('2', 's', '/s'))
        const busy = other.withTransaction((its) =>
          other.inbox.once(its, 's', { source: '/s', id: '2' }, () => 'twice'),
        )
        await expect(busy).rejects.toMatchObject({ code: 'RETRY_LATER', charged: false })
      })
    })
  })
}
