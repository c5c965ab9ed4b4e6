import * as client from 'prom-client'
import { afterEach, describe, expect, test } from 'vitest'
import { TELEMETRY_NAMES, telemetry } from '../../src/core/index.ts'
import { METRICS, type MetricsOptions, recordMetrics } from '../../src/observability/index.ts'
import { billing, everyKind, listSource } from './support.ts'

let stop = () => {}
let registry = new client.Registry()
afterEach(() => {
  stop()
  registry = new client.Registry()
})

function record(options: Partial<MetricsOptions> = {}): void {
  stop = recordMetrics({ client, registry, ...options })
}

/** The samples of one metric, as they are scraped. */
async function samples(name: string): Promise<string[]> {
  const text = await registry.metrics()
  return text
    .split('\n')
    .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
    .sort()
}

function handled(changes: { type?: string; tenant?: string; took?: number; count?: number } = {}): void {
  const { type = 'order.placed', tenant, took = 20, count = 1 } = changes
  telemetry['messages.handled'].publish({ flow: 'billing', type, result: 'done', took, tenant, count })
}

describe('recordMetrics', () => {
  test('every event that counts something has a metric', () => {
    const used = new Set(METRICS.flatMap(({ from }) => Object.keys(from)))
    // `messages.handled` counts the same, many at once; a gauge of the log says how long it has been held.
    const unused = TELEMETRY_NAMES.filter((name) => !used.has(name))
    expect(unused, 'give it a metric, or say here why it has none').toEqual(['message.handled', 'projection.held'])
    expect(new Set(METRICS.map(({ name }) => name)).size).toBe(METRICS.length)
  })

  test('counts what was taken, settled, stale and failed, by flow', async () => {
    record()
    telemetry['flow.taken'].publish({ flow: 'billing', count: 7 })
    telemetry['flow.settled'].publish({
      flow: 'billing',
      done: 4,
      retry: 2,
      dead: 1,
      release: 0,
      stale: 3,
      took: 30,
    })
    const error = new Error('x')
    telemetry['flow.open_failed'].publish({ flow: 'billing', error, retryIn: 1 })
    telemetry['flow.settle_failed'].publish({ flow: 'billing', error, count: 3, lost: false })
    expect(await samples('waybill_flow_taken_total')).toEqual(['waybill_flow_taken_total{flow="billing"} 7'])
    expect(await samples('waybill_flow_settled_total')).toEqual([
      'waybill_flow_settled_total{flow="billing",result="dead"} 1',
      'waybill_flow_settled_total{flow="billing",result="done"} 4',
      'waybill_flow_settled_total{flow="billing",result="retry"} 2',
    ])
    expect(await samples('waybill_flow_stale_total')).toEqual(['waybill_flow_stale_total{flow="billing"} 3'])
    expect(await samples('waybill_flow_failed_total')).toEqual([
      'waybill_flow_failed_total{flow="billing",call="open"} 1',
      'waybill_flow_failed_total{flow="billing",call="settle"} 1',
    ])
    expect(await samples('waybill_flow_settle_seconds_sum')).toEqual([
      'waybill_flow_settle_seconds_sum{flow="billing"} 0.03',
    ])
  })

  test('a pause shows while it lasts; a lost session and a stop end it', async () => {
    record()
    const paused = () => samples('waybill_flow_paused')
    const pause = () => telemetry['flow.paused'].publish({ flow: 'f', error: new Error('x'), retryIn: 1, failures: 1 })
    pause()
    expect(await paused()).toEqual(['waybill_flow_paused{flow="f"} 1'])
    telemetry['flow.resumed'].publish({ flow: 'f', pausedFor: 10 })
    expect(await paused()).toEqual(['waybill_flow_paused{flow="f"} 0'])
    pause()
    telemetry['flow.lost'].publish({ flow: 'f', unsettled: 1, reason: new Error('x') })
    expect(await paused()).toEqual(['waybill_flow_paused{flow="f"} 0'])
    pause()
    telemetry['worker.stopped'].publish({ worker: 'f', took: 1 })
    telemetry['worker.stopped'].publish({ worker: 'a cleaner', took: 1 })
    expect(await paused()).toEqual(['waybill_flow_paused{flow="f"} 0'])
    expect(await samples('waybill_flow_pauses_total')).toEqual(['waybill_flow_pauses_total{flow="f"} 3'])
  })

  test('times are in seconds', async () => {
    record()
    handled({ took: 20 })
    handled({ took: 40_000 })
    const labels = 'flow="billing",type="order.placed",result="done"'
    expect(await samples('waybill_message_seconds_sum')).toEqual([`waybill_message_seconds_sum{${labels}} 40.02`])
    const buckets = await samples('waybill_message_seconds_bucket')
    expect(buckets).toContain(`waybill_message_seconds_bucket{le="0.025",${labels}} 1`)
    expect(buckets).toContain(`waybill_message_seconds_bucket{le="60",${labels}} 2`)
  })

  test('a thousand types do not become a thousand time series', async () => {
    record({ types: 2 })
    for (let i = 0; i < 1000; i++) handled({ type: `type.${i}` })
    expect(await samples('waybill_messages_handled_total')).toEqual([
      'waybill_messages_handled_total{flow="billing",type="other",result="done"} 998',
      'waybill_messages_handled_total{flow="billing",type="type.0",result="done"} 1',
      'waybill_messages_handled_total{flow="billing",type="type.1",result="done"} 1',
    ])
  })

  test('types may be listed', async () => {
    record({ types: ['order.placed'] })
    handled({ type: 'first.come' })
    handled()
    const lines = await samples('waybill_messages_handled_total')
    expect(lines.map((line) => /type="([^"]+)"/.exec(line)?.[1])).toEqual(['order.placed', 'other'])
  })

  test('tenants are no label unless listed, and only those listed', async () => {
    record()
    handled({ tenant: 'acme' })
    expect(await registry.metrics()).not.toContain('acme')
    stop()
    registry = new client.Registry()
    record({ tenants: ['acme'] })
    handled({ tenant: 'acme' })
    handled({ tenant: 'umbrella' })
    handled()
    const lines = await samples('waybill_messages_handled_total')
    expect(lines.map((line) => /tenant="([^"]*)"/.exec(line)?.[1]).sort()).toEqual(['', 'acme', 'other'])
  })

  test('after a stop a second recorder goes on with the same metrics; two at once are refused', async () => {
    record()
    handled()
    expect(() => recordMetrics({ client, registry })).toThrow('being recorded to already')
    stop()
    handled()
    record()
    handled()
    const [line] = await samples('waybill_messages_handled_total')
    expect(line).toMatch(/ 2$/)
  })

  test('the registry is the client’s own unless another is given', async () => {
    stop = recordMetrics({ client })
    expect(client.register.getSingleMetric('waybill_flow_taken_total')).toBeDefined()
    client.register.clear()
  })

  test('what is not prom-client, and wrong options, are refused before anything is listened to', () => {
    expect(() => recordMetrics({} as never)).toThrow('prom-client')
    expect(() => recordMetrics({ client, tenant: [] } as never)).toThrow('did you mean "tenants"?')
    expect(() => recordMetrics({ client, registry, types: -1 })).toThrow('types')
    expect(() => recordMetrics({ client, registry, tenants: 'acme' as never })).toThrow('tenants')
    expect(TELEMETRY_NAMES.filter((name) => telemetry[name].active)).toEqual([])
  })
})

test('no payload stands in any name, label or help, whatever happens to a message', async () => {
  record({ tenants: ['acme'] })
  const consumer = billing().consume(listSource(everyKind()), { to: () => {} })
  await consumer.runOnce()
  await consumer.stop()
  const text = await registry.metrics()
  expect(text).toContain('waybill_messages_dead_total{flow="billing",type="order.placed",tenant="acme"} 2')
  expect(text).toContain('waybill_unknown_type_total{router="billing",policy="ack-and-warn"} 1')
  expect(text).toMatch(
    /waybill_messages_handled_total\{flow="billing",type="order.placed",result="retry",tenant="acme"\} 3/,
  )
  expect(text).not.toContain('4111')
})
