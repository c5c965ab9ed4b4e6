import { afterEach, describe, expect, test } from 'vitest'
import { event, Unavailable } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { RoutingRelay } from '../../src/outbox/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { collector, recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { scraped } from './worlds.ts'

const Placed = event<{ n: number }>('order.placed')

describe('what is not counted as a dispatch', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  function recorded(options: Parameters<typeof scraped>[0] = {}) {
    const metrics = scraped(options)
    ends.push(metrics.stop)
    return metrics
  }

  test('what is given back: the broker goes away while the relay is stopped', async () => {
    const metrics = recorded()
    const told = recordTelemetry()
    ends.push(() => told.stop())
    const db = memory()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [Placed({ n: 1 }), Placed({ n: 2 })]))
    let publishing = false
    let goAway = () => {}
    const away = new Promise<never>((_, reject) => {
      goAway = () => reject(new Unavailable('the broker is away'))
    })
    const to = () => {
      publishing = true
      return away
    }
    const relay = new Relay({ from: db.outbox as never, to: to as never, poll: '5ms' })
    await relay.start()
    await eventually('it publishes', () => publishing)
    const stopped = relay.stop()
    await eventually('its flow stops', () => relay.status().children?.some(({ state }) => state === 'draining'))
    goAway()
    await stopped
    // They were handled, and given back: that alone is why nothing is counted.
    expect(told.of('messages.handled').map(({ result }) => result)).toContain('release')
    expect(await metrics.of('outbox_dispatch_total')).toEqual({})
    expect(await metrics.of('outbox_dispatch_latency_seconds_count')).toEqual({})
  })

  test('the mover of a routing relay: each event is counted in its branches alone', async () => {
    const metrics = recorded()
    const db = memory({ outbox: { branches: ['warehouse', 'audit'] } })
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [Placed({ n: 1 }), Placed({ n: 2 })], { topic: 'orders' }))
    const to = { warehouse: collector(), audit: collector() }
    const relay = new RoutingRelay({ from: db.outbox as never, to, routes: { '#': ['warehouse', 'audit'] } })
    ends.push(() => relay.stop())
    await relay.start()
    await eventually('all arrived', () => to.warehouse.messages.length === 2 && to.audit.messages.length === 2)
    const dispatched = async () => {
      const lines = (await metrics.registry.metrics()).split('\n')
      return lines.filter((line) => line.startsWith('outbox_dispatch_total{')).sort()
    }
    await eventually('both are counted', async () => (await dispatched()).length >= 2)
    expect(await dispatched()).toEqual([
      expect.stringMatching(/table="[^"]*audit",topic="orders",result="success"\} 2$/),
      expect.stringMatching(/table="[^"]*warehouse",topic="orders",result="success"\} 2$/),
    ])
    // Nor as a consumer.
    expect(await metrics.of('waybill_messages_handled_total')).toEqual({})
    expect(await metrics.of('waybill_message_seconds_count')).toEqual({})
  })

  test('a topic beyond the bound is counted as other; with a list, each that is not in it', async () => {
    const two = recorded({ topics: 2 })
    const listed = recorded({ topics: ['t3'] })
    const db = memory()
    for (let n = 0; n < 5; n++) {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, [Placed({ n })], { topic: `t${n}` }))
    }
    const relay = new Relay({ from: db.outbox as never, to: (async () => {}) as never })
    await relay.runOnce()
    await relay.stop()
    expect(await two.of('outbox_enqueue_total')).toEqual({ 'topic="t0"': 1, 'topic="t1"': 1, 'topic="other"': 3 })
    expect(await two.of('outbox_dispatch_total')).toEqual({
      'topic="t0",result="success"': 1,
      'topic="t1",result="success"': 1,
      'topic="other",result="success"': 3,
    })
    expect(await listed.of('outbox_enqueue_total')).toEqual({ 'topic="t3"': 1, 'topic="other"': 4 })
  })
})
