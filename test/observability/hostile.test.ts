import * as client from 'prom-client'
import { afterEach, describe, expect, test } from 'vitest'
import { event, type GaugeSource, type GaugeValue, observe, TELEMETRY_NAMES, telemetry } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { GaugeBoard } from '../../src/observability/gauges.ts'
import { recordMetrics } from '../../src/observability/index.ts'
import { STATES } from '../../src/outbox/admin.ts'
import { outboxGauges } from '../../src/outbox/outbox-gauges.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { sagaGauges } from '../../src/saga/saga-gauges.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'
import { scraped } from './worlds.ts'

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

function recorded(options: Parameters<typeof scraped>[0] = {}) {
  const metrics = scraped(options)
  ends.push(() => metrics.stop())
  return metrics
}

/** What Prometheus reads as one line: a name, labels in quotes with escapes, a number. */
const LINE = /^[a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*\})? (?:[0-9.e+-]+|\+Inf|NaN)$/

test('topics, types and tenants with quotes and line ends stay one line each', async () => {
  const tenant = 'acme"\n\\ outbox_dead_total{table="x"} 7\n'
  const metrics = recorded({ tenants: [tenant] })
  const odd = 'a"}\n# TYPE b counter\nb 1\r\u0000'
  telemetry['outbox.enqueued'].publish({ table: odd, topic: odd, count: 1, duplicates: 1 })
  const handled = { flow: odd, type: odd, tenant, result: 'done', count: 1, took: 1 } as const
  telemetry['messages.handled'].publish(handled)
  telemetry['messages.handled'].publish({ ...handled, table: odd, topic: odd, ages: [1] })
  const lines = (await metrics.registry.metrics()).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  expect(lines.length).toBeGreaterThan(50)
  for (const line of lines) expect(line).toMatch(LINE)
  expect(lines.filter((line) => line.startsWith('b 1'))).toEqual([])
})

test('half characters, which are sent as the same sign, are one series', async () => {
  const metrics = recorded()
  for (const type of ['a\ud800', 'a\ud801', 'a\udc00']) {
    telemetry['message.suspected'].publish({ flow: 'f', type, id: '1' } as never)
    telemetry['messages.handled'].publish({ flow: 'f', type, tenant: undefined, result: 'done', count: 1, took: 1 })
  }
  const sent = Buffer.from(await metrics.registry.metrics()).toString('utf8')
  const series = sent.split('\n').map((line) => line.slice(0, line.lastIndexOf(' ')))
  expect(series.filter((one, i) => one.includes('{') && series.indexOf(one) !== i)).toEqual([])
  expect(sent).toContain('waybill_messages_handled_total{flow="f",type="a\ufffd",result="done"} 3')
})

test('a registry that is reset begins at nothing, also with what no scrape has seen', async () => {
  const metrics = recorded()
  const handled = { flow: 'f', type: 't', tenant: undefined, result: 'done', count: 2, took: 1 } as const
  telemetry['messages.handled'].publish(handled)
  metrics.registry.resetMetrics()
  telemetry['messages.handled'].publish({ ...handled, count: 3 })
  const text = await metrics.registry.metrics()
  expect(text).toContain('waybill_messages_handled_total{flow="f",type="t",result="done"} 3')
  expect(text).toContain('waybill_message_seconds_count{flow="f",type="t",result="done"} 3')
})

test('ten thousand topics and types are a hundred of each, and other', async () => {
  const metrics = recorded()
  for (let n = 0; n < 10_000; n++) {
    telemetry['outbox.enqueued'].publish({ table: 'outbox', topic: `topic.${n}`, count: 1, duplicates: 0 })
    telemetry['messages.handled'].publish({
      ...{ flow: 'f', type: `type.${n}`, tenant: `tenant.${n}`, result: 'done', count: 1, took: 1 },
    })
  }
  const topics = await metrics.of('outbox_enqueue_total')
  expect(Object.keys(topics)).toHaveLength(101)
  expect(topics['topic="other"']).toBe(9900)
  expect(Object.keys(await metrics.of('waybill_messages_handled_total'))).toHaveLength(101)
})

test('two relays of one outbox in one process are one to whoever looks', async () => {
  const metrics = recorded()
  const db = memory()
  const relays = ['a', 'b'].map((name) => new Relay({ from: db.outbox, to: async () => {}, name, lease: '3s' }))
  ends.push(() => Promise.all(relays.map((relay) => relay.stop())))
  for (const relay of relays) await relay.start()
  await eventually('one leads', async () => (await metrics.of('outbox_leader'))[''] === 1)
  const lines = (await metrics.registry.metrics()).split('\n')
  for (const name of [
    'outbox_leader',
    'outbox_paused',
    'outbox_locked_count',
    'outbox_pending_count',
    'waybill_gauges_up',
  ]) {
    expect(lines.filter((line) => line.startsWith(`${name}{`))).toHaveLength(1)
  }
})

test('two stores with an outbox of one name in one process are told in sum, or not at all', async () => {
  const metrics = recorded()
  const dbs = [memory(), memory()]
  for (const db of dbs) {
    const relay = new Relay({ from: db.outbox, to: async () => {} })
    await relay.start()
    ends.push(() => relay.stop())
  }
  const later = { availableAt: new Date(Date.now() + 3_600_000) }
  for (const [i, db] of dbs.entries()) {
    const events = Array.from({ length: 2 + i }, (_, n) => event('order.placed')({ n }))
    await db.withTransaction((tx) => db.outbox.enqueue(tx, events, later))
  }
  await eventually('both tell', async () => (await metrics.of('outbox_scheduled_count'))[''] === 5)
  expect(await metrics.of('outbox_leader')).toEqual({ '': 1 })
  // Part of it would look as if the rest had gone out.
  const read = () => Promise.reject(new Error('no'))
  ends.push(observe({ name: 'odd', status: () => ({ state: 'running' }), gauges: source({ of: 'outbox', read }) }))
  await eventually('one is missed', async () => (await metrics.of('waybill_gauges_up'))[''] === 0)
  expect(await metrics.of('outbox_scheduled_count')).toEqual({})
})

test('of what has one name in several stores ages are the largest, and counts are added', async () => {
  const metrics = recorded()
  const of = (lag: number) => [
    { gauge: 'projection.lag', value: lag } as const,
    { gauge: 'projection.lag_seconds', value: lag } as const,
    { gauge: 'projection.held', value: lag } as const,
  ]
  for (const lag of [3, 4]) {
    const gauges = source({ subject: 'projection', of: 'orders/1', read: async () => of(lag) })
    ends.push(observe({ name: 'orders/1', status: () => ({ state: 'running' }), gauges }))
  }
  const at = 'projection="orders/1"'
  expect(await metrics.of('waybill_projection_lag_events')).toEqual({ [at]: 7 })
  expect(await metrics.of('waybill_projection_lag_seconds')).toEqual({ [at]: 4 })
  expect(await metrics.of('waybill_projection_held_seconds')).toEqual({ [at]: 4 })
})

test('a registry that was cleared can be recorded to again, and is not before it was stopped', async () => {
  const registry = new client.Registry()
  const stop = recordMetrics({ client, registry })
  registry.clear()
  telemetry['flow.taken'].publish({ flow: 'f', count: 1 })
  expect(await registry.metrics()).toBe('\n')
  expect(() => recordMetrics({ client, registry })).toThrow('stop that first')
  stop()
  ends.push(recordMetrics({ client, registry }))
  telemetry['flow.taken'].publish({ flow: 'f', count: 2 })
  expect(await registry.metrics()).toContain('waybill_flow_taken_total{flow="f"} 2')
})

describe('a registry that is shared with others', () => {
  const heard = () => TELEMETRY_NAMES.filter((name) => telemetry[name].active)

  test('metrics of others stay as they are beside ours', async () => {
    const registry = new client.Registry()
    registry.setDefaultLabels({ app: 'shop', table: 'none' })
    new client.Counter({ name: 'http_requests_total', help: 'x', registers: [registry] }).inc()
    ends.push(recordMetrics({ client, registry }))
    telemetry['outbox.enqueued'].publish({ table: 'outbox', topic: 'orders', count: 1, duplicates: 0 })
    const text = await registry.metrics()
    expect(text).toContain('http_requests_total{app="shop",table="none"} 1')
    expect(text).toContain('outbox_enqueue_total{table="outbox",topic="orders",app="shop"} 1')
  })

  test.each<[string, (registers: [client.Registry]) => unknown]>([
    [
      'a counter with other labels',
      (registers) => new client.Counter({ name: 'outbox_dead_total', help: 'x', registers }),
    ],
    [
      'a gauge with our labels',
      (registers) =>
        new client.Gauge({ name: 'outbox_dead_total', help: 'x', labelNames: ['table', 'topic'], registers }),
    ],
    ['a gauge that we ask for', (registers) => new client.Gauge({ name: 'outbox_dead_count', help: 'x', registers })],
  ])('%s has one of our names: refused by name, nothing is listened to, and scrapes go on', async (_, register) => {
    const registry = new client.Registry()
    register([registry])
    expect(() => recordMetrics({ client, registry })).toThrow(
      /names already.*: outbox_dead_(?:total|count); rename yours/,
    )
    expect(heard()).toEqual([])
    await registry.metrics()
    const other = new client.Registry()
    ends.push(recordMetrics({ client, registry: other }))
    expect(await other.metrics()).toContain('outbox_dead_total')
  })

  test('a later recorder with other labels is refused: it would go on without them', async () => {
    const registry = new client.Registry()
    recordMetrics({ client, registry })()
    expect(() => recordMetrics({ client, registry, tenants: ['acme'] })).toThrow(
      'with other labels: outbox_dispatch_total',
    )
    expect(heard()).toEqual([])
    registry.clear()
    ends.push(recordMetrics({ client, registry, tenants: ['acme'] }))
  })

  test('one that keeps nothing, as that of a test may, is recorded to', () => {
    const registry = { getSingleMetric: () => undefined, registerMetric: () => {} } as never
    ends.push(recordMetrics({ client, registry }))
  })

  test('what is no registry is refused', () => {
    expect(() => recordMetrics({ client, registry: {} as never })).toThrow('registry must be a Registry')
  })
})

/** Somebody to ask, who answers as told. */
function source(changes: Partial<GaugeSource> = {}): GaugeSource {
  return { subject: 'table', of: 'odd', leads: () => true, read: async () => [], ...changes }
}

test.each<[string, Partial<GaugeSource>]>([
  ['rejects', { read: () => Promise.reject(new Error('no')) }],
  [
    'throws',
    {
      read: () => {
        throw new Error('no')
      },
    },
  ],
  ['never answers', { read: () => new Promise(() => {}) }],
  ['does not know who leads', { leads: () => new Promise(() => {}) }],
  ['fails to find out who leads', { leads: () => Promise.reject(new Error('no')) }],
  [
    'throws when it is asked who leads',
    {
      leads: () => {
        throw new Error('no')
      },
    },
  ],
])('one that %s costs nobody else their numbers, and no scrape more than a second', async (_, changes) => {
  const metrics = recorded()
  const healthy = source({ of: 'healthy', read: async () => [{ gauge: 'outbox.pending', value: 7 }] })
  const status = () => ({ state: 'running' })
  ends.push(observe({ name: 'odd', status, gauges: source(changes) }))
  ends.push(observe({ name: 'healthy', status, gauges: healthy }))
  const clock = new FakeClock()
  let told: readonly unknown[] | undefined
  void new GaugeBoard('leader', clock).samples('outbox.pending').then((samples) => {
    told = samples
  })
  await clock.advance(999)
  expect(told).toEqual([{ labels: { table: 'healthy' }, value: 7 }])
  const text = await metrics.registry.metrics()
  expect(text).toMatch(/^waybill_gauges_up\{table="odd"\} 0$/m)
  expect(text).toMatch(/^outbox_pending_count\{table="healthy"\} 7$/m)
})

test.each<[string, () => never | Promise<never>]>([
  ['never answers', () => new Promise<never>(() => {})],
  ['rejects', () => Promise.reject(new Error('no'))],
  [
    'throws',
    () => {
      throw new Error('no')
    },
  ],
])(
  'one that is asked again who leads, and %s, costs nobody else their numbers, and no scrape more than a second',
  async (_, then) => {
    let asked = 0
    const odd = source({
      leads: () => (asked++ === 0 ? true : then()),
      read: async () => [{ gauge: 'outbox.pending', value: 3 }],
    })
    const healthy = source({ of: 'healthy', read: async () => [{ gauge: 'outbox.pending', value: 7 }] })
    const status = () => ({ state: 'running' })
    ends.push(observe({ name: 'odd', status, gauges: odd }))
    ends.push(observe({ name: 'healthy', status, gauges: healthy }))
    const clock = new FakeClock()
    const board = new GaugeBoard('leader', clock)
    let told: readonly unknown[] = []
    void board.samples('outbox.pending').then(
      (samples) => (told = samples),
      () => {},
    )
    await clock.advance(999)
    expect(told).toEqual([{ labels: { table: 'healthy' }, value: 7 }])
  },
)

test('one that fails to say what it knows by itself costs nobody anything but that', async () => {
  const metrics = recorded()
  const fails = () => {
    throw new Error('no')
  }
  const read = async () => [{ gauge: 'outbox.pending', value: 7 } as const]
  ends.push(observe({ name: 'odd', status: () => ({ state: 'running' }), gauges: source({ local: fails, read }) }))
  ends.push(observe({ name: 'worse', status: fails, gauges: source({ of: 'other', read }) }))
  const lastSuccess = new Date(1e12)
  ends.push(observe({ name: 'healthy', status: () => ({ state: 'running', lastSuccess }) }))
  expect(Object.keys(await metrics.of('outbox_pending_count'))).toHaveLength(1)
  const text = await metrics.registry.metrics()
  for (const table of ['odd', 'other']) {
    expect(text).toContain(`outbox_pending_count{table="${table}"} 7`)
    expect(text).toContain(`waybill_gauges_up{table="${table}"} 1`)
  }
  expect(text).toContain('waybill_worker_last_success_timestamp_seconds{worker="healthy"} 1000000000')
})

test('sagas whose types are beyond the bound are one series: counts in sum, of ages the largest', async () => {
  const metrics = recorded({ types: ['order'] })
  const of = (type: string, count: number, seconds: number, estimated: number): GaugeValue[] => [
    { gauge: 'saga.alive', value: count, labels: { type, state: 'running' } },
    { gauge: 'saga.oldest_due', value: seconds, labels: { type } },
    { gauge: 'saga.estimated', value: estimated, labels: { type, state: 'running' } },
  ]
  const read = async () => [...of('order', 1, 1, 0), ...of('refund', 2, 60, 1), ...of('return', 3, 30, 1)]
  const gauges = source({ subject: 'saga', of: 'sagas', read })
  ends.push(observe({ name: 'runner', status: () => ({ state: 'running' }), gauges }))
  const lines = (await metrics.registry.metrics()).split('\n').filter((line) => line.startsWith('waybill_saga_'))
  expect(lines.sort()).toEqual([
    'waybill_saga_alive_count{saga="sagas",type="order",state="running"} 1',
    'waybill_saga_alive_count{saga="sagas",type="other",state="running"} 5',
    'waybill_saga_count_estimated{saga="sagas",type="order",state="running"} 0',
    'waybill_saga_count_estimated{saga="sagas",type="other",state="running"} 1',
    'waybill_saga_oldest_due_seconds{saga="sagas",type="order"} 1',
    'waybill_saga_oldest_due_seconds{saga="sagas",type="other"} 60',
  ])
})

test('switched off, gauges ask no store; what a process knows by itself is told', async () => {
  const metrics = recorded({ gauges: 'off' })
  const asked: string[] = []
  const asks = (subject: GaugeSource['subject']): GaugeSource => ({
    subject,
    of: 'x',
    local: () => [{ gauge: 'outbox.paused', value: 1 }],
    leads: () => subject !== 'saga' || asked.push('who leads') > 0,
    async read() {
      asked.push(subject)
      return []
    },
  })
  for (const subject of ['table', 'saga'] as const) {
    ends.push(observe({ name: subject, status: () => ({ state: 'running' }), gauges: asks(subject) }))
  }
  const text = await metrics.registry.metrics()
  expect(text).toContain('outbox_paused{table="x"} 1')
  expect(text).toContain('outbox_leader{table="x"} 1')
  expect(text).not.toMatch(/^waybill_gauges_up\{/m)
  expect(asked).toEqual([])
})

test('who loses the lead in the middle of a scrape leaves it to the next, who tells the same', async () => {
  const metrics = recorded()
  let leads = true
  const gauges = source({
    leads: () => leads,
    read: async () => {
      leads = false
      return [{ gauge: 'outbox.pending', value: 1 }]
    },
  })
  ends.push(observe({ name: 'odd', status: () => ({ state: 'running' }), gauges }))
  const text = await metrics.registry.metrics()
  expect(text).toContain('outbox_leader{table="odd"} 0')
  expect(text).not.toMatch(/^(?:outbox_pending_count|waybill_gauges_up)\{/m)
})

test('a store is told how long a scrape has, and up to how many to count', async () => {
  const asked: unknown[] = []
  const none = { count: 0, estimated: false }
  const states = Object.fromEntries(STATES.map((state) => [state, none]))
  const answers = (of: (...all: never[]) => unknown, answer: unknown) => {
    return async (...all: never[]) => {
      asked.push(of(...all))
      return answer
    }
  }
  const stats = answers((options) => options, { states, blockedKeys: none, oldestReadySeconds: undefined })
  const outbox = outboxGauges(
    { name: 'odd', admin: { stats } } as never,
    {} as never,
    { competes: true } as never,
    () => true,
  )
  const sagas = sagaGauges({ name: 'odd', stats: answers((...all) => all, []) } as never, new Set(), () => {
    return { lost: new AbortController().signal, tellsOfAll: async () => true } as never
  })
  for (const gauges of [outbox!, sagas!]) {
    const local = () => []
    ends.push(observe({ name: 'odd', status: () => ({ state: 'running' }), gauges: { ...gauges, local } }))
  }
  // For this clock no time passes: what is left of a second, with time for the answer to come back.
  await new GaugeBoard('leader', new FakeClock()).samples('outbox.pending')
  expect(asked).toEqual([{ exactUpTo: 1_000_000, published: false, within: 600 }, [1_000_000, 600]])
})

test('what is no number is not told', async () => {
  const metrics = recorded()
  const read = async () => [
    { gauge: 'outbox.oldest', value: Number.NaN } as const,
    { gauge: 'outbox.pending', value: 3 } as const,
  ]
  ends.push(observe({ name: 'odd', status: () => ({ state: 'running' }), gauges: source({ read }) }))
  expect(await metrics.of('outbox_pending_count')).toEqual({ '': 3 })
  expect(await metrics.of('outbox_oldest_pending_seconds')).toEqual({})
})
