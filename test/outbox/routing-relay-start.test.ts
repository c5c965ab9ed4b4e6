import { afterEach, describe, expect, test } from 'vitest'
import { errorSummary, WaybillError } from '../../src/core/index.ts'
import type { RoutingRelay } from '../../src/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { untilEmpty } from './routing-routes.ts'
import { orders, Paid, Placed, world } from './routing-support.ts'

type World = Awaited<ReturnType<typeof world>>

describe('starting a routing relay', () => {
  let it: World
  afterEach(() => it?.end())

  const refused: [string, Parameters<World['relay']>[0], RegExp][] = [
    [
      'a route to nowhere',
      { routes: { 'order.*': 'warehous', '#': ['audit', 'warehouse'] } },
      /did you mean "warehouse"/,
    ],
    ['a destination that no route leads to', { routes: { '#': 'audit' } }, /no route leads to "warehouse"/],
    ['a route without a destination', { routes: { '#': [], a: ['audit', 'warehouse'] } }, /leads nowhere/],
    ['a pattern that is none', { routes: { '#.a': ['audit', 'warehouse'] } }, /not at the end/],
    ['a topic without a route', { topics: ['order.placed', 'refund.asked'] }, /no route fits the topic "refund.asked"/],
    ['no destinations', { to: {} }, /must name its destinations/],
    ['an unknown option', { route: {} } as never, /did you mean "routes"/],
    [
      'an unknown option of a destination',
      { to: { warehouse: { to: () => {}, retry: { atempts: 1 } }, audit: () => {} } } as never,
      /did you mean "attempts"/,
    ],
    ['a policy that is none', { unmatched: 'skip' } as never, /Allowed: dead, drop/],
    [
      'a destination without a branch',
      { to: { audit: () => {}, stock: () => {} }, routes: { '#': ['audit', 'stock'] } },
      /has no branch "stock"\. Declared: /,
    ],
  ]
  test.each(refused)('%s is refused', async (_, options, text) => {
    it = await world('memory', 'owner')
    expect(() => it.relay(options)).toThrow(text)
  })

  test('events by their types are topics too', async () => {
    it = await world('memory', 'owner')
    it.relay({ topics: [Placed, Paid] })
  })

  test('a destination that cannot be reached yet keeps no other from starting', async () => {
    it = await world('memory', 'owner')
    let there = false
    const warehouse = {
      ...it.warehouse,
      start: async () => {
        if (!there) throw Object.assign(new Error('nobody listens'), { code: 'ECONNREFUSED' })
      },
    }
    const routing: RoutingRelay = it.relay({ to: { warehouse, audit: it.audit } })
    await routing.start()
    await it.enqueue(Placed({ n: 1 }))
    await it.audit.arrived(1)
    expect(it.warehouse.messages).toEqual([])
    there = true
    await it.warehouse.arrived(1)
  })

  test('a destination that never comes to an end of its start keeps no other from starting, and is told', async () => {
    it = await world('memory', 'owner')
    const clock = new FakeClock()
    const warehouse = { ...it.warehouse, start: () => new Promise<never>(() => {}) }
    const telemetry = recordTelemetry(['warning'])
    const routing: RoutingRelay = it.relay({ to: { warehouse, audit: it.audit }, clock })
    const starting = routing.start()
    await clock.advance(10_000)
    await starting
    await it.enqueue(Placed({ n: 1 }))
    await clock.until(() => it.audit.messages.length === 1)
    expect(telemetry.of('warning').map(({ message }) => message)).toEqual([
      expect.stringMatching(/^destination warehouse cannot be reached yet: .*has not started within 10000 ms/),
    ])
    telemetry.stop()
    const stopping = routing.stop()
    await clock.advance(60_000)
    await stopping
  })

  test('a destination whose settings are wrong is told at start, and nothing is left running', async () => {
    it = await world('memory', 'owner')
    const warehouse = {
      ...it.warehouse,
      start: async () => {
        throw new WaybillError('INVALID_OPTION', 'no such exchange')
      },
    }
    const routing = it.relay({ to: { warehouse, audit: it.audit } })
    await expect(routing.start()).rejects.toThrow('no such exchange')
    await it.enqueue(Placed({ n: 1 }))
    // Whoever were still at work would have moved it by the time a relay of its own has looked twice.
    const other = it.relay()
    expect((await other.runOnce()).moved.taken).toBe(1)
    expect(it.audit.messages.length).toBe(1)
  })

  test('what waits for a destination that is no more is told', async () => {
    it = await world('memory', 'owner')
    await it.db.outbox.distribute(new Map([['warehouse', orders(3)]]))
    const telemetry = recordTelemetry()
    const routing = it.relay({ to: { audit: it.audit }, routes: { '#': 'audit' } })
    await routing.start()
    telemetry.stop()
    const told = telemetry.events.filter(({ name }) => name === 'warning').map(({ event }) => JSON.stringify(event))
    expect(told.join()).toContain('the branch warehouse of outbox holds 3 events')
  })

  test('what is thrown says nothing of the data', async () => {
    it = await world('memory', 'owner')
    await it.db.withTransaction((tx) => it.db.outbox.enqueue(tx, Placed({ n: 424242 }), { topic: 'x.y' }))
    await untilEmpty(it.relay())
    const [dead] = await it.db.outbox.admin.list({ states: ['dead'] })
    expect(errorSummary(new Error(dead!.lastError))).not.toContain('424242')
  })
})
