import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { Redis as IoRedis } from 'ioredis'
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest'
import { event, type Message, Reject } from '../../src/core/index.ts'
import {
  injectTrace,
  parseTraceparent,
  type TraceOptions,
  tracing,
  useOpenTelemetry,
} from '../../src/observability/index.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { redis } from '../../src/redis/index.ts'
import { Router } from '../../src/router/index.ts'
import { saga } from '../../src/saga/index.ts'
import { outboxOn } from '../postgres/support.ts'
import { created, ListLog, orders, world as projectionWorld } from '../projection/support.ts'
import { freshTag } from '../redis/support.ts'
import { inMemory } from '../saga/support.ts'
import { service } from '../support/services.ts'
import { listSource } from './support.ts'
import { WORLDS } from './worlds.ts'

const Placed = event<{ n: number }>('order.placed')
const exporter = new InMemorySpanExporter()

beforeAll(() => {
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
})
afterAll(() => {
  api.trace.disable()
  api.context.disable()
})

const millis = ([seconds, nanos]: [number, number]) => seconds * 1000 + nanos / 1e6

describe.each(Object.keys(WORLDS))('one trace through an outbox on %s', (kind) => {
  test('from the request through enqueue, the time in the outbox, relay and handler', async () => {
    exporter.reset()
    const world = await WORLDS[kind]!()
    const stop = useOpenTelemetry(api)
    const handled: Message[] = []
    const router = new Router('billing').use(tracing({ api })).on(Placed, (message) => void handled.push(message))
    const to = async (message: Message) => {
      const context = { signal: new AbortController().signal, attempt: 1, router: 'billing', topic: 'orders' }
      await router.handle(message, context as never)
    }
    const relay = new Relay({ from: world.outbox, to: to as never })
    try {
      const request = api.trace.getTracer('test').startSpan('POST /orders')
      const inside = api.trace.setSpan(api.context.active(), request)
      await api.context.with(inside, () => world.enqueue(Placed({ n: 1 }), { topic: 'orders' }))
      request.end()
      await relay.runOnce()
      const { traceId, spanId } = request.spanContext()
      expect(parseTraceparent(handled[0]!.extensions['traceparent'])).toMatchObject({ traceId, spanId })
      const spans = exporter.getFinishedSpans()
      expect(new Set(spans.map((span) => span.spanContext().traceId))).toEqual(new Set([traceId]))
      expect(spans.map(({ name }) => name).sort()).toEqual(
        ['POST /orders', `outbox ${world.outbox.name}`, 'process order.placed', 'send orders'].sort(),
      )
      const waited = spans.find(({ name }) => name.startsWith('outbox '))!
      const took = millis(waited.endTime) - millis(waited.startTime)
      expect(took).toBeGreaterThanOrEqual(0)
      expect(took).toBeLessThan(60_000)
      expect(waited.attributes).toMatchObject({ 'messaging.destination.name': 'orders', 'waybill.attempt': 1 })
    } finally {
      stop()
      await relay.stop()
      await world.end()
    }
  })
})

test('an outbox in a stream of Redis stores the trace too, and one that the event has already stays', async () => {
  const connection = new IoRedis(service('redis').url)
  const db = redis({ client: connection, tag: freshTag() })
  const stop = useOpenTelemetry(api)
  try {
    const request = api.trace.getTracer('test').startSpan('POST /orders')
    const own = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
    const events = [Placed({ n: 1 }), Placed({ n: 2 }, { extensions: { traceparent: own } })]
    const inside = api.trace.setSpan(api.ROOT_CONTEXT, request)
    await api.context.with(inside, () => db.withTransaction((tx) => db.outbox.enqueue(tx, events, { key: 'k' })))
    const entries = await connection.xrange(db.outbox.stream, '-', '+')
    const stored = entries.map(([, fields]) => JSON.parse(fields[fields.indexOf('event') + 1]!))
    expect(stored.map(({ partitionkey }) => partitionkey)).toEqual(['k', 'k'])
    const { traceId, spanId } = request.spanContext()
    expect(parseTraceparent(stored[0].traceparent)).toMatchObject({ traceId, spanId })
    expect(stored[1].traceparent).toBe(own)
  } finally {
    stop()
    await db.stop()
    connection.disconnect()
  }
})

test('the time in the outbox is told by the clock of the database, whatever this process thinks the time is', async () => {
  exporter.reset()
  const t = await outboxOn()
  const stop = useOpenTelemetry(api)
  try {
    const inside = api.trace.setSpan(api.context.active(), api.trace.getTracer('test').startSpan('POST /orders'))
    await api.context.with(inside, () => t.enqueue(Placed({ n: 1 })))
    await t.pool.query(`UPDATE outbox SET created_at = created_at - interval '5 minutes'`)
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 86_400_000 })
    await t.relay().runOnce()
    const spans = exporter.getFinishedSpans()
    const [waited, sent] = ['outbox outbox', 'send order.placed'].map((name) => spans.find((one) => one.name === name)!)
    const minutes = (millis(waited!.endTime) - millis(waited!.startTime)) / 60_000
    expect(Math.floor(minutes)).toBe(5)
    // Sending follows the wait, on the same clock.
    expect(Math.abs(millis(sent!.startTime) - millis(waited!.endTime))).toBeLessThan(1)
  } finally {
    vi.useRealTimers()
    stop()
    await t.end()
  }
})

test('a second call takes the place of the first: no span comes twice, and the first one ends nothing', async () => {
  const world = await WORLDS['memory']!()
  const stops = [useOpenTelemetry(api), useOpenTelemetry(api)]
  const relay = new Relay({ from: world.outbox, to: (async () => {}) as never })
  const inside = api.trace.setSpan(api.context.active(), api.trace.getTracer('test').startSpan('x'))
  try {
    const names = async (n: number) => {
      exporter.reset()
      await api.context.with(inside, () => world.enqueue(Placed({ n })))
      await relay.runOnce()
      return exporter.getFinishedSpans().map(({ name }) => name)
    }
    expect(await names(1)).toEqual(['outbox outbox', 'send order.placed'])
    stops[0]!()
    expect(await names(2)).toEqual(['outbox outbox', 'send order.placed'])
    stops[1]!()
    expect(await names(3)).toEqual([])
  } finally {
    for (const stop of stops) stop()
    await relay.stop()
  }
})

test('a trace that the event has already stays, and after the stop nothing is added', async () => {
  const world = await WORLDS['memory']!()
  const own = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
  const inside = api.trace.setSpan(api.context.active(), api.trace.getTracer('test').startSpan('x'))
  const stop = useOpenTelemetry(api)
  const sent: Message[] = []
  await api.context.with(inside, () => world.enqueue(Placed({ n: 1 }, { extensions: { traceparent: own } })))
  stop()
  await api.context.with(inside, () => world.enqueue(Placed({ n: 2 })))
  const relay = new Relay({ from: world.outbox, to: (async (message: Message) => void sent.push(message)) as never })
  await relay.runOnce()
  expect(sent.map(({ extensions }) => extensions['traceparent'])).toEqual([own, undefined])
  await relay.stop()
})

describe('consumers, sagas and projections, without a middleware of their own', () => {
  const traceOf = (span: { spanContext(): api.SpanContext }) => span.spanContext().traceId
  const finished = (name: string) => exporter.getFinishedSpans().find((span) => span.name === name)!
  const Sent = event<{ n: number }>('invoice.sent')

  async function consumed(
    options: TraceOptions,
    router: Router,
    then: () => Promise<unknown> = async () => {},
  ): Promise<{ request: api.Span; sent: Message[] }> {
    exporter.reset()
    const stop = useOpenTelemetry(api, options)
    try {
      const request = api.trace.getTracer('test').startSpan('POST /orders')
      const inside = api.trace.setSpan(api.ROOT_CONTEXT, request)
      const message = api.context.with(inside, () => injectTrace(Placed({ n: 1 }), api))
      request.end()
      const sent: Message[] = []
      const consumer = router.consume(listSource([message]), { to: (output) => sent.push(output) })
      await consumer.runOnce()
      await consumer.stop()
      await then()
      return { request, sent }
    } finally {
      stop()
    }
  }

  test('trace parent: the handling is a child of the sender, and outputs carry it on', async () => {
    const { request, sent } = await consumed(
      {},
      new Router('billing').on(Placed, ({ data }) => Sent(data)),
    )
    const span = finished('process order.placed')
    expect(span.parentSpanContext?.spanId).toBe(request.spanContext().spanId)
    expect(parseTraceparent(sent[0]!.extensions['traceparent'])?.spanId).toBe(span.spanContext().spanId)
  })

  test('trace link: the handling begins a trace of its own, linked with the sender', async () => {
    const router = new Router('billing').on(Placed, ({ data }) => Sent(data))
    const { request, sent } = await consumed({ trace: 'link' }, router)
    const span = finished('process order.placed')
    expect(span.parentSpanContext).toBeUndefined()
    expect(traceOf(span)).not.toBe(traceOf(request))
    expect(span.links.map(({ context }) => [context.traceId, context.spanId])).toEqual([
      [traceOf(request), request.spanContext().spanId],
    ])
    expect(parseTraceparent(sent[0]!.extensions['traceparent'])?.traceId).toBe(traceOf(span))
    expect(() => useOpenTelemetry(api, { trace: 'both' as never })).toThrow(/parent/)
  })

  test('a router with the middleware has one span for each message, not two', async () => {
    await consumed(
      {},
      new Router('billing').use(tracing({ api })).on(Placed, () => {}),
    )
    expect(exporter.getFinishedSpans().map(({ name }) => name)).toEqual(['POST /orders', 'process order.placed'])
  })

  test('a saga that a handler starts: its steps are in the trace, active while they run, and their errors hold no data', async () => {
    const world = inMemory()
    try {
      const ran: (string | undefined)[] = []
      const one = saga<{ card: string }>('order', { version: 1 })
        .step('reserve', () => void ran.push(api.trace.getActiveSpan()?.spanContext().traceId))
        .step('charge', ({ input }) => {
          throw new Reject(`no money on ${input.card}`)
        })
      const asks = saga('asks', { version: 1 }).request('ship', {
        send: () => Sent({ n: 1 }),
        reply: Placed,
        within: '1h',
      })
      const runner = await world.runner([one as never, asks as never]).start()
      const [client, asking] = [runner.client(one as never), runner.client(asks as never)]
      const router = new Router('billing').on(Placed, async () => {
        await world.db.withTransaction(async (tx) => {
          await client.start(tx as never, { card: '4111-secret' } as never)
          await asking.start(tx as never, {} as never)
        })
      })
      const { request } = await consumed({}, router, () =>
        world.clock.until(() => finished('run order.charge') !== undefined, 60_000),
      )
      const [reserve, charge] = [finished('run order.reserve'), finished('run order.charge')]
      expect([traceOf(reserve), traceOf(charge), ran[0]]).toEqual(Array(3).fill(traceOf(request)))
      expect(reserve.attributes).toMatchObject({ 'waybill.saga.type': 'order', 'waybill.saga.step': 'reserve' })
      // What a saga asks of others carries the trace on.
      const asked: Message[] = []
      const relay = new Relay({
        from: world.db.outbox,
        to: (async (message: Message) => void asked.push(message)) as never,
      })
      await relay.runOnce()
      await relay.stop()
      expect(asked.map(({ type }) => type)).toEqual(['invoice.sent'])
      expect(parseTraceparent(asked[0]!.extensions['traceparent'])?.traceId).toBe(traceOf(request))
      expect(charge.status.code).toBe(api.SpanStatusCode.ERROR)
      expect(JSON.stringify([charge.status, charge.attributes, charge.events])).not.toContain('4111')
    } finally {
      await world.end()
    }
  })

  test('a batch of a projection is linked with the traces of its events, and a child of none', async () => {
    exporter.reset()
    const at = await projectionWorld()
    const stop = useOpenTelemetry(api)
    try {
      const log = new ListLog()
      const requests = ['a', 'b'].map((name) => api.trace.getTracer('test').startSpan(name))
      for (const [i, request] of requests.entries()) {
        const inside = api.trace.setSpan(api.ROOT_CONTEXT, request)
        log.append(api.context.with(inside, () => injectTrace(created(`o${i}`), api)))
      }
      await at.projector(log, [orders()]).runOnce()
      const span = finished('project order_list_view/1')
      expect(span.parentSpanContext).toBeUndefined()
      expect(span.links.map(({ context }) => context.traceId)).toEqual(requests.map(traceOf))
      expect(await at.rows()).toHaveLength(2)
    } finally {
      stop()
      await at.end()
    }
  })
})
