import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { event, Reject, Unavailable } from '../../src/core/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import type { RelayOptions } from '../../src/outbox/relay-options.ts'
import { collector } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { scraped, WORLDS, type World } from './worlds.ts'

const Placed = event<{ n: number }>('order.placed')
const placed = (n: number) => Placed({ n })

/** Publishes what its number allows: 1 is refused for good, 2 fails, the others arrive. */
async function publish(message: { data: unknown }): Promise<void> {
  const { n } = JSON.parse(String(message.data)) as { n: number }
  if (n === 1) throw new Reject('never')
  if (n === 2) throw new Error('not now')
}

describe.each(Object.keys(WORLDS))("C's metrics on %s", (kind) => {
  let world: World
  let metrics: ReturnType<typeof scraped>
  const relays: Relay[] = []
  beforeEach(async () => {
    world = await WORLDS[kind]!()
    metrics = scraped()
  })
  afterEach(async () => {
    await Promise.all(relays.splice(0).map((relay) => relay.stop()))
    metrics.stop()
    await world.end()
  })

  function relay(options: Partial<RelayOptions> = {}): Relay {
    const made = new Relay({ from: world.outbox, to: publish as never, ...options })
    relays.push(made)
    return made
  }

  test('enqueue counts what is new, by topic; duplicates apart', async () => {
    const first = placed(1)
    await world.enqueue([first, placed(2)])
    await world.enqueue([first, placed(3)], { topic: 'orders' })
    expect(await metrics.of('outbox_enqueue_total')).toEqual({ 'topic="order.placed"': 2, 'topic="orders"': 1 })
    expect(await metrics.of('outbox_enqueue_duplicates_total')).toEqual({ 'topic="orders"': 1 })
  })

  test('attempts are counted by result, the dead by topic, and what was given back is not', async () => {
    await world.enqueue([placed(1), placed(2), placed(3), placed(4)], { topic: 'orders' })
    await relay({ retry: { backoff: { min: '1h' } } }).runOnce()
    expect(await metrics.of('outbox_dispatch_total')).toEqual({
      'topic="orders",result="success"': 2,
      'topic="orders",result="failure"': 2,
    })
    expect(await metrics.of('outbox_dead_total')).toEqual({ 'topic="orders"': 1 })
    const latency = await metrics.of('outbox_dispatch_latency_seconds_count')
    expect(latency).toEqual({ 'topic="orders",result="success"': 2, 'topic="orders",result="failure"': 2 })
    expect(await metrics.of('outbox_delivery_seconds_count')).toEqual({ '': 2 })
    const { '': sum } = await metrics.of('outbox_delivery_seconds_sum')
    expect(sum).toBeGreaterThan(0)
    expect(sum).toBeLessThan(60)
    // Relays are not consumers: no message is counted in two places.
    expect(await metrics.of('waybill_messages_handled_total')).toEqual({})
    expect(await metrics.of('waybill_messages_dead_total')).toEqual({})
    expect(await metrics.of('waybill_messages_retried_total')).toEqual({})
  })

  test('the last attempt that is allowed makes an event dead, and is a failure like those before', async () => {
    await world.enqueue(placed(2), { topic: 'orders' })
    const trying = relay({ retry: { attempts: 3, backoff: { min: 0, jitter: 0 } } })
    await eventually('it is given up', async () => {
      await trying.runOnce()
      return (await metrics.of('outbox_dead_total'))['topic="orders"'] === 1
    })
    expect(await metrics.of('outbox_dispatch_total')).toEqual({ 'topic="orders",result="failure"': 3 })
  })

  test('an outage counts as no attempt: the pause and the oldest age show it', async () => {
    await world.enqueue([placed(3), placed(4)])
    let away = true
    const to = async () => {
      if (away) throw new Unavailable('the broker is away')
    }
    const running = relay({ to, poll: '10ms', maxPoll: '20ms', outage: { min: 5, max: 10 } })
    await running.start()
    await eventually('it pauses', async () => (await metrics.of('outbox_paused'))[''] === 1)
    expect(await metrics.of('outbox_dispatch_total')).toEqual({})
    expect((await metrics.of('outbox_oldest_pending_seconds'))['']).toBeGreaterThan(0)
    away = false
    await eventually(
      'it goes on',
      async () => (await metrics.of('outbox_dispatch_total'))['topic="order.placed",result="success"'] === 2,
    )
    await eventually('the pause is over', async () => (await metrics.of('outbox_paused'))[''] === 0)
  })

  test('gauges tell what is pending, scheduled, dead and unsettled', async () => {
    await world.enqueue([placed(1), placed(3)])
    await world.enqueue(placed(4), { availableAt: new Date(Date.now() + 3_600_000) })
    await relay({ deleteOnPublish: true }).runOnce()
    await world.enqueue([placed(5), placed(6)])
    const sink = collector()
    const resume = sink.hold()
    await relay({ to: sink }).start()
    await eventually('two are unsettled', async () => (await metrics.of('outbox_locked_count'))[''] === 2)
    expect(await metrics.of('outbox_pending_count')).toEqual({ '': 3 })
    expect(await metrics.of('outbox_scheduled_count')).toEqual({ '': 1 })
    expect(await metrics.of('outbox_dead_count')).toEqual({ '': 1 })
    expect(await metrics.of('outbox_blocked_keys')).toEqual({ '': 0 })
    expect(await metrics.of('waybill_gauges_up')).toEqual({ '': 1 })
    expect((await metrics.of('outbox_count_estimated'))['state="pending"']).toBe(0)
    resume()
    await eventually('all are out', async () => (await metrics.of('outbox_pending_count'))[''] === 1)
    expect((await metrics.of('outbox_oldest_pending_seconds'))['']).toBe(0)
  })

  test('of two processes only the one that leads tells of the table; all of them, or none, on request', async () => {
    await world.enqueue(placed(4), { availableAt: new Date(Date.now() + 3_600_000) })
    const all = scraped({ gauges: 'all' })
    const off = scraped({ gauges: 'off' })
    try {
      const [first, second] = [relay({ name: 'first', lease: '3s' }), relay({ name: 'second', lease: '3s' })]
      await first.start()
      await eventually('it leads', () => first.gauges!.leads() === true)
      await second.start()
      await eventually('it knows the other', () => second.gauges!.leads() === false)
      expect(await metrics.of('outbox_pending_count')).toEqual({ '': 1 })
      expect(await all.of('outbox_pending_count')).toEqual({ '': 1 })
      expect(await off.of('outbox_pending_count')).toEqual({})
      await first.stop()
      // Another leads, as far as it knows yet: a standby says nothing.
      await eventually('the second follows', () => second.gauges!.leads() === true)
      expect(await metrics.of('outbox_pending_count')).toEqual({ '': 1 })
      expect(await metrics.of('outbox_leader')).toEqual({ '': 1 })
    } finally {
      all.stop()
      off.stop()
    }
  })
})
