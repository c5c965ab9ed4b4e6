import { afterEach, describe, expect, test } from 'vitest'
import { scale } from '../support/scale.ts'
import { without } from '../support/services.ts'
import { untilEmpty } from './routing-routes.ts'
import { byKey, ids, KINDS, orders, Paid, Placed, world } from './routing-support.ts'

type World = Awaited<ReturnType<typeof world>>

for (const { store, reader } of KINDS) {
  describe.skipIf(store === 'postgres' && without('postgres'))(`routing by topic: ${store}, ${reader}`, () => {
    let it: World
    const make = async () => {
      it = await world(store, reader)
      return it
    }
    afterEach(() => it.end())
    const waits = { timeout: 120_000 }

    test('each event goes to the destinations of its topic, and the outbox is empty', waits, async () => {
      const { enqueue, relay, warehouse, audit, db } = await make()
      const [placed, paid, renamed] = [Placed({ n: 1 }), Paid({ n: 2 }), Placed({ n: 3 })]
      await enqueue(placed, paid)
      await db.withTransaction((tx) => db.outbox.enqueue(tx, renamed, { topic: 'invoice.of.an.order' }))
      const routing = relay()
      await untilEmpty(routing)
      expect(ids(warehouse.messages)).toEqual([placed.id])
      expect(ids(audit.messages)).toEqual(ids([placed, paid, renamed]))
      expect(await db.outbox.admin.list()).toEqual([])
      expect(await routing.states(placed.id)).toEqual({ warehouse: 'published', audit: 'published' })
      expect(await routing.states(paid.id)).toEqual({ audit: 'published' })
    })

    test('each route that fits counts, and a destination gets an event once', waits, async () => {
      const { enqueue, relay, warehouse, audit } = await make()
      const placed = Placed({ n: 1 })
      await enqueue(placed)
      await untilEmpty(relay({ routes: { '#': 'audit', 'order.*': 'warehouse', 'order.placed': ['audit'] } }))
      expect([ids(warehouse.messages), ids(audit.messages)]).toEqual([[placed.id], [placed.id]])
    })

    test('a destination that is down for long pauses no other, and spends no attempt', waits, async () => {
      const { enqueue, relay, warehouse, audit, left } = await make()
      const count = scale({ test: 600, full: 5000, torture: 50_000 })
      const restore = warehouse.down()
      const all = orders(count, 7)
      for (let from = 0; from < count; from += 200) await enqueue(...all.slice(from, from + 200))
      const routing = relay()
      await routing.start()
      await audit.arrived(count, 100_000)
      await expect.poll(() => warehouse.calls.length, { timeout: 60_000 }).toBeGreaterThan(0)
      expect(warehouse.messages).toEqual([])
      // Down goes on: what is enqueued now still flows.
      const late = orders(20)
      await enqueue(...late)
      await audit.arrived(count + 20, 100_000)
      expect((await left('warehouse')).filter(({ attempts, state }) => attempts > 0 || state === 'dead')).toEqual([])
      restore()
      await warehouse.arrived(count + 20, 100_000)
      await routing.stop()
      expect(ids(warehouse.messages)).toEqual(ids([...all, ...late]))
      expect(ids(audit.messages)).toEqual(ids([...all, ...late]))
    })

    test('dead at one destination is dead there only, and re-arming sends it there only', waits, async () => {
      const { enqueue, relay, warehouse, audit, db } = await make()
      const accept = warehouse.reject()
      const placed = Placed({ n: 1 }, { key: 'a' })
      await enqueue(placed)
      const routing = relay()
      await untilEmpty(routing)
      expect(await routing.states(placed.id)).toEqual({ warehouse: 'dead', audit: 'published' })
      const { admin } = db.outbox.branch('warehouse')
      expect((await admin.list({ states: ['dead'] })).map(({ eventId, attempts }) => [eventId, attempts])).toEqual([
        [placed.id, 1],
      ])
      accept()
      expect(await admin.rearm({ eventIds: [placed.id] })).toBe(1)
      await untilEmpty(routing)
      expect(await routing.states(placed.id)).toEqual({ warehouse: 'published', audit: 'published' })
      expect(ids(warehouse.messages)).toEqual([placed.id])
      expect(ids(audit.messages)).toEqual([placed.id])
    })

    test('one that fails at one destination is tried again there only', waits, async () => {
      const { enqueue, relay, warehouse, audit } = await make()
      warehouse.fail({ times: 2 })
      const placed = Placed({ n: 1 })
      await enqueue(placed)
      const routing = relay()
      await untilEmpty(routing)
      expect(warehouse.calls.length).toBe(3)
      expect(audit.calls.length).toBe(1)
      expect([ids(warehouse.messages), ids(audit.messages)]).toEqual([[placed.id], [placed.id]])
    })

    test('moving twice, as after a crash, sends nothing twice', waits, async () => {
      const { enqueue, relay, warehouse, audit, db } = await make()
      const all = orders(10)
      await enqueue(...all)
      // What the mover does, up to the moment before it settles.
      const parts = new Map([
        ['warehouse', all],
        ['audit', all],
      ])
      await db.outbox.distribute(parts)
      await db.outbox.distribute(parts)
      await untilEmpty(relay())
      expect(ids(warehouse.messages)).toEqual(ids(all))
      expect(ids(audit.messages)).toEqual(ids(all))
    })

    test('branches are written together or not at all', waits, async () => {
      const { db } = await make()
      const all = orders(3)
      const parts = new Map([
        ['audit', all],
        ['nowhere', all],
      ])
      await expect(db.outbox.distribute(parts)).rejects.toMatchObject({ code: 'NO_BRANCH' })
      expect(await db.outbox.branch('audit').admin.list()).toEqual([])
    })

    test('a topic without a route is dead in the outbox, and goes on when there is one', waits, async () => {
      const { enqueue, relay, warehouse, audit, db } = await make()
      const lost = Placed({ n: 1 })
      await db.withTransaction((tx) => db.outbox.enqueue(tx, lost, { topic: 'refund.asked' }))
      await enqueue(Placed({ n: 2 }))
      const first = relay()
      await untilEmpty(first)
      await first.stop()
      const [dead] = await db.outbox.admin.list({ states: ['dead'] })
      expect([dead!.eventId, dead!.lastError]).toEqual([lost.id, expect.stringContaining('NO_ROUTE')])
      expect(audit.messages.length).toBe(1)
      const second = relay({ routes: { 'order.*': 'warehouse', '#': 'audit' } })
      await db.outbox.admin.rearm({ eventIds: [lost.id] })
      await untilEmpty(second)
      expect(ids(audit.messages)).toContain(lost.id)
      expect(warehouse.messages.length).toBe(1)
    })

    test.skipIf(reader === 'lease')(
      '… and later ones of its key wait for it, at every destination',
      waits,
      async () => {
        const { enqueue, relay, audit, db } = await make()
        const lost = Placed({ n: 1 }, { key: 'a' })
        await db.withTransaction((tx) => db.outbox.enqueue(tx, lost, { topic: 'refund.asked' }))
        await enqueue(Placed({ n: 2 }, { key: 'a' }), Placed({ n: 3 }, { key: 'b' }))
        const first = relay()
        await untilEmpty(first)
        await first.stop()
        expect(byKey(audit.messages)).toEqual({ b: [3] })
        await db.outbox.admin.rearm({ eventIds: [lost.id] })
        await untilEmpty(relay({ routes: { '#': ['audit', 'warehouse'] } }))
        expect(byKey(audit.messages)).toEqual({ b: [3], a: [1, 2] })
      },
    )

    test('… or dropped, when told so', waits, async () => {
      const { relay, db, audit } = await make()
      await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 }), { topic: 'refund.asked' }))
      await untilEmpty(relay({ unmatched: 'drop' }))
      expect([await db.outbox.admin.list(), audit.messages]).toEqual([[], []])
    })

    test.skipIf(reader === 'lease')('order per key holds at each destination', waits, async () => {
      const { enqueue, relay, warehouse, audit } = await make()
      const count = scale({ test: 400, full: 4000, torture: 40_000 })
      warehouse.fail({ where: ({ data }) => JSON.parse(data as string).n % 50 === 3, times: 8 })
      const all = orders(count, 5)
      const routing = relay({ retry: { attempts: 1000 } })
      await routing.start()
      for (let from = 0; from < count; from += 40) await enqueue(...all.slice(from, from + 40))
      await Promise.all([warehouse.arrived(count, 100_000), audit.arrived(count, 100_000)])
      await routing.stop()
      const expected = byKey(all.map((one) => one.withData(JSON.stringify(one.data))))
      expect(byKey(warehouse.messages)).toEqual(expected)
      expect(byKey(audit.messages)).toEqual(expected)
    })

    test.skipIf(reader === 'lease')('a key blocked at one destination goes on at another', waits, async () => {
      const { enqueue, relay, warehouse, audit, left } = await make()
      const all = orders(6, 2)
      warehouse.reject({ id: all[0]!.id })
      await enqueue(...all)
      await untilEmpty(relay())
      expect(byKey(audit.messages)).toEqual({ k0: [0, 2, 4], k1: [1, 3, 5] })
      expect(byKey(warehouse.messages)).toEqual({ k1: [1, 3, 5] })
      expect((await left('warehouse')).map(({ key }) => key)).toEqual(['k0', 'k0', 'k0'])
    })

    test('settings of one destination are its own', waits, async () => {
      const { enqueue, relay, warehouse, audit, left } = await make()
      warehouse.fail()
      await enqueue(Placed({ n: 1 }))
      await untilEmpty(relay({ to: { warehouse: { to: warehouse, retry: { attempts: 3 } }, audit } }))
      expect(warehouse.calls.length).toBe(3)
      expect(await left('warehouse')).toEqual([{ state: 'dead', attempts: 3, key: undefined }])
    })
  })
}
