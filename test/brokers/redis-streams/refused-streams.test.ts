import type { Redis } from 'ioredis'
import { afterAll, beforeAll, expect, test } from 'vitest'
import {
  redisStreams,
  type StreamsSource,
  type StreamsSourceOptions,
} from '../../../src/brokers/redis-streams/index.ts'
import { type Delivery, DONE, Flow, RELEASE } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { fresh, ioredis, message, NEVER, receive } from './support.ts'

for (const server of ['redis', 'redis6'] as const) {
  describeWith([server], `one stream of several that is refused, on ${server}`, () => {
    let admin: Redis
    beforeAll(() => {
      admin = ioredis(service(server).url)
    })
    afterAll(() => admin.disconnect())

    /** A source of two streams, and what makes the first of them unusable, and usable again. */
    async function setup(more: Partial<StreamsSourceOptions> = {}) {
      const [orders, payments, user] = [fresh('orders'), fresh('payments'), fresh('user')]
      await admin.call('ACL', 'SETUSER', user, 'on', '>pw', '+@all', '~*')
      const url = new URL(service(server).url)
      url.username = user
      url.password = 'pw'
      const [mine, theirs] = [url.href, service(server).url].map((one) => redisStreams({ client: ioredis(one) }))
      const publisher = theirs!.publisher()
      const [source, another] = [1, 2].map(() =>
        mine!.source({ stream: [orders, payments], group: 'g', block: 20, ...more }),
      ) as [StreamsSource, StreamsSource]
      const seen: string[] = []
      const attempts = new Set<number>()
      return {
        orders,
        payments,
        source,
        another,
        seen,
        attempts,
        publish: (type: string, ...ids: string[]) =>
          publisher.publish(
            ids.map((id) => message('{}', { type, id })),
            NEVER,
          ),
        flow: (work = async (_id: string) => {}) => {
          const each = async ({ message: { id }, attempts: spent }: Delivery) => {
            seen.push(id)
            attempts.add(spent)
            await work(id)
          }
          const some = { concurrency: 2, buffer: { count: 2 }, outage: { min: 10, max: 50 } }
          return new Flow({ name: orders, from: source, step: { each }, ...some })
        },
        refuse: {
          'overwritten with another type': () => admin.set(orders, 'x'),
          'not allowed any more': () => admin.call('ACL', 'SETUSER', user, 'resetkeys', `~*${payments}*`),
        },
        mend: async () => {
          await admin.call('ACL', 'SETUSER', user, '~*')
          if ((await admin.type(orders)) === 'string') await admin.del(orders)
        },
        async pending() {
          const all = await Promise.all([orders, payments].map((key) => admin.xpending(key, 'g')))
          return all.map(([count]) => count)
        },
        async close() {
          await mine!.close()
          await theirs!.close()
          await admin.call('ACL', 'DELUSER', user)
        },
      }
    }

    for (const what of ['overwritten with another type', 'not allowed any more'] as const) {
      test(`${what}: told, the other is read on, and it comes back by itself`, async () => {
        // A read waits nearly all the time: it is to be there when the key is overwritten.
        const { orders, payments, seen, attempts, publish, flow, refuse, mend, pending, close } = await setup({
          block: 500,
        })
        const told = recordTelemetry(['warning', 'message.dead'])
        const reading = flow()
        await reading.start()
        await publish(orders, 'a')
        await publish(payments, 'b')
        await eventually('both are read', () => seen.length === 2)
        await refuse[what]()
        const warned = () => told.of('warning').map((warning) => warning.message)
        await eventually('it is told', () => warned().length > 0, { seen: () => reading.status() })
        expect(warned()[0]).toMatch(new RegExp(`the stream "${orders}" is refused and left out.*(NOPERM|WRONGTYPE)`))
        for (const id of ['c', 'd', 'e']) {
          await publish(payments, id)
          await eventually('the other is read on', () => seen.includes(id), { seen: () => reading.status() })
        }
        expect(reading.status().state).toBe('running')
        await mend()
        await publish(orders, 'f')
        await eventually('it is read again', () => seen.includes('f'), { seen: () => reading.status() })
        await reading.stop()
        told.stop()
        expect(seen).toEqual(['a', 'b', 'c', 'd', 'e', 'f'])
        expect([...attempts], 'nobody is charged').toEqual([0])
        expect(warned(), 'once').toHaveLength(1)
        expect(told.of('message.dead')).toEqual([])
        expect(await pending()).toEqual([0, 0])
        await close()
      })

      test(`${what}, with all that is in flight of it: there is room for the other, and what was done stays done`, async () => {
        const { orders, payments, seen, publish, flow, refuse, mend, pending, close } = await setup()
        let open = () => {}
        const gate = new Promise<void>((resolve) => {
          open = resolve
        })
        await publish(orders, 'o1', 'o2')
        const reading = flow((id) => (id === 'p' ? Promise.resolve() : gate))
        await reading.start()
        await eventually('both are in work', () => seen.length === 2)
        await refuse[what]()
        open()
        await publish(payments, 'p')
        await eventually('the other is read', () => seen.includes('p'), { seen: () => reading.status() })
        await mend()
        await publish(orders, 'o3')
        await eventually('it is read again', () => seen.includes('o3'), { seen: () => reading.status() })
        await eventually('all is settled', async () => (await pending()).join() === '0,0', { seen: pending })
        await reading.stop()
        expect(seen).toEqual(['o1', 'o2', 'p', 'o3'])
        await close()
      })

      test(`${what}, while a consumer has died with entries of both: taken over where allowed, and later the rest`, async () => {
        const { orders, payments, source, publish, refuse, mend, pending, close } = await setup({
          reclaim: { every: 0, idle: 1 },
        })
        for (const type of [orders, payments]) {
          await publish(type, `of ${type}`)
          await admin.xgroup('CREATE', type, 'g', '0')
          await admin.xreadgroup('GROUP', 'g', 'dead', 'COUNT', 1, 'STREAMS', type, '>')
        }
        // What it holds may still be there, under another name.
        if (what === 'overwritten with another type') await admin.rename(orders, `${orders}-kept`)
        await refuse[what]()
        const session = await source.open()
        const [payment] = await receive(session, 1)
        expect(payment).toMatchObject({ attempts: 1, message: { id: `of ${payments}` } })
        expect(await session.settle([[payment!, DONE]])).toBe(0)
        await mend()
        if (what === 'overwritten with another type') await admin.rename(`${orders}-kept`, orders)
        const [order] = await receive(session, 1)
        expect(order).toMatchObject({ attempts: 1, message: { id: `of ${orders}` } })
        expect(await session.settle([[order!, DONE]])).toBe(0)
        expect(await pending()).toEqual([0, 0])
        await session.close()
        await close()
      })

      test(`${what}: a session that ends gives back what it has of the other`, async () => {
        const { orders, payments, source, another, publish, refuse, mend, close } = await setup()
        for (const type of [orders, payments]) await publish(type, `of ${type}`)
        const first = await source.open()
        await receive(first, 2)
        await refuse[what]()
        await expect(first.close()).rejects.toThrow(/WRONGTYPE|NOPERM/)
        // As another process: it knows of nobody's end.
        const other = await another.open()
        const [payment] = await receive(other, 1)
        expect(payment).toMatchObject({ attempts: 0, message: { id: `of ${payments}` } })
        expect(await other.settle([[payment!, DONE]])).toBe(0)
        await other.close()
        // The first knows what it had to leave behind, also when it is opened before that can be taken.
        const second = await source.open()
        expect(await second.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
        await mend()
        // One that was overwritten is gone.
        if (what === 'overwritten with another type') await publish(orders, `of ${orders}`)
        const [order] = await receive(second, 1)
        expect(order).toMatchObject({ attempts: 0, message: { id: `of ${orders}` } })
        await second.close()
        await close()
      })
    }

    test('one that is well again is seen by a renewal too: what is in work is kept while nothing is taken', async () => {
      const { orders, source, another, publish, refuse, mend, close } = await setup({
        reclaim: { every: 0, idle: 3000 },
      })
      await publish(orders, 'a')
      const session = await source.open()
      const [order] = await receive(session, 1)
      const began = performance.now()
      await refuse['not allowed any more']()
      await session.extend([order!])
      await mend()
      const other = await another.open()
      for (let i = 0; performance.now() - began < 3500; i++) {
        if (i % 20 === 0) await session.extend([order!])
        expect(await other.take({ count: 1, bytes: 1e6 }, NEVER)).toEqual([])
      }
      expect(await session.settle([[order!, DONE]])).toBe(0)
      await other.close()
      await session.close()
      await close()
    })

    test('one that was refused when the session was opened: what a process of the same name left there is taken over', async () => {
      const { orders, payments, source, publish, refuse, mend, close } = await setup({ consumer: 'worker' })
      await publish(orders, 'a')
      // Where it has read nothing nobody knows of it.
      for (const key of [orders, payments]) await admin.xgroup('CREATE', key, 'g', '0', 'MKSTREAM')
      await admin.xreadgroup('GROUP', 'g', 'worker:dead', 'COUNT', 1, 'STREAMS', orders, '>')
      await refuse['not allowed any more']()
      const session = await source.open()
      await mend()
      expect(await receive(session, 1, 20_000)).toMatchObject([{ attempts: 1, message: { id: 'a' } }])
      await session.close()
      await close()
    })

    test('one that is well again when the session ends: what was handled of it stays done', async () => {
      const { orders, source, publish, refuse, mend, pending, close } = await setup()
      await publish(orders, 'a', 'b')
      const session = await source.open()
      const [done, back] = await receive(session, 2)
      await refuse['not allowed any more']()
      const settled = [[done!, DONE] as const, [back!, RELEASE] as const]
      expect(await session.settle(settled), 'it cannot be written').toBe(2)
      await mend()
      await session.close()
      expect(await pending()).toEqual([1, 0])
      const next = await source.open()
      expect(await receive(next, 1)).toMatchObject([{ entry: back!.entry, attempts: 0 }])
      await next.close()
      await close()
    })

    test('one that is another stream when it is back: an entry of the same id is not taken for the one that was handled', async () => {
      const { orders, source, publish, refuse, close } = await setup()
      const session = await source.open()
      await admin.xadd(orders, '1-1', 'event', '{"specversion":"1.0","id":"a","source":"/s","type":"t"}')
      const [order] = await receive(session, 1)
      await refuse['overwritten with another type']()
      expect(await session.settle([[order!, DONE]]), 'it cannot be written').toBe(1)
      await admin.del(orders)
      await admin.xadd(orders, '1-1', 'event', '{"specversion":"1.0","id":"b","source":"/s","type":"t"}')
      await admin.xgroup('CREATE', orders, 'g', '0')
      await admin.xreadgroup('GROUP', 'g', 'other', 'STREAMS', orders, '>')
      await publish(orders, 'c')
      expect(await receive(session, 1), 'it is read again').toMatchObject([{ message: { id: 'c' } }])
      expect(await admin.xpending(orders, 'g', '1-1', '1-1', 1, 'other'), 'still its own').toHaveLength(1)
      await session.close()
      await close()
    })

    for (const what of ['group', 'stream'] as const) {
      test(`the ${what} of one is deleted: it is made again, the other goes on, and nobody is charged`, async () => {
        const { orders, payments, seen, attempts, publish, flow, close } = await setup()
        const reading = flow()
        await reading.start()
        await publish(orders, 'a')
        await publish(payments, 'b')
        await eventually('both are read', () => seen.length === 2)
        if (what === 'group') await admin.xgroup('DESTROY', orders, 'g')
        else await admin.del(orders)
        for (const [type, id] of [
          [payments, 'c'],
          [orders, 'd'],
        ] as const) {
          await publish(type, id)
          await eventually('it goes on', () => seen.includes(id), { seen: () => reading.status() })
        }
        await reading.stop()
        // A group that is made again reads all there is.
        expect(seen.filter((id) => id !== 'a').sort()).toEqual(['b', 'c', 'd'])
        expect([...attempts]).toEqual([0])
        await close()
      })
    }
  })
}
