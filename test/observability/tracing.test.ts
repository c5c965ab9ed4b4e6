import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import fc from 'fast-check'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { decodeData, event, type Message } from '../../src/core/index.ts'
import { setTopic } from '../../src/flow/index.ts'
import { formatTraceparent, injectTrace, parseTraceparent, tracing } from '../../src/observability/index.ts'
import { Router } from '../../src/router/index.ts'
import { billing, everyKind, InvoiceSent, listSource, OrderPlaced, SECRET } from './support.ts'

const exporter = new InMemorySpanExporter()

function register(): void {
  api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
}

afterEach(() => {
  exporter.reset()
  api.trace.disable()
  api.context.disable()
})

const SENDER = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
const order = { orderId: '1', card: SECRET }

function sent(extensions: Record<string, string>, router = billingWithTracing()): Promise<Message[]> {
  return outputsOf(router, OrderPlaced(order, { id: 'sent', extensions }))
}

function billingWithTracing(): Router {
  return new Router('billing').use(tracing({ api })).on(OrderPlaced, async ({ data }) => InvoiceSent(data))
}

async function outputsOf(router: Router, message: Message): Promise<Message[]> {
  const outputs: Message[] = []
  const consumer = router.consume(listSource([message]), { to: (output) => outputs.push(output) })
  await consumer.runOnce()
  await consumer.stop()
  return outputs
}

describe('with a tracer', () => {
  test('request, message and what follows from it are one trace', async () => {
    register()
    const request = api.trace.getTracer('test').startSpan('POST /orders')
    const placed = api.context.with(api.trace.setSpan(api.context.active(), request), () =>
      injectTrace(OrderPlaced(order, { id: 'sent' }), api),
    )
    request.end()
    let inside: api.SpanContext | undefined
    const router = new Router('billing').use(tracing({ api })).on(OrderPlaced, async ({ data }) => {
      await new Promise((resolve) => setImmediate(resolve))
      inside = api.trace.getActiveSpan()?.spanContext()
      return InvoiceSent(data)
    })
    const [invoice] = await outputsOf(router, placed)
    const [first, second] = exporter.getFinishedSpans()
    expect(first?.name).toBe('POST /orders')
    expect(second).toMatchObject({ name: 'process order.placed', kind: api.SpanKind.CONSUMER })
    expect(second?.parentSpanContext?.spanId).toBe(first?.spanContext().spanId)
    expect(second?.spanContext().traceId).toBe(first?.spanContext().traceId)
    expect(inside).toEqual(second?.spanContext())
    expect(invoice?.extensions['traceparent']).toBe(formatTraceparent(second!.spanContext()))
  })

  test('the sender’s trace state comes along', async () => {
    register()
    const [invoice] = await sent({ traceparent: SENDER, tracestate: 'vendor=1,other=2' })
    expect(invoice?.extensions).toMatchObject({ tracestate: 'vendor=1,other=2' })
    expect(invoice?.extensions['traceparent']).toMatch(/^00-0af7651916cd43dd8448eb211c80319c-(?!b7ad)/)
  })

  test('a message without a trace, or with nonsense for one, begins its own', async () => {
    register()
    await sent({})
    await sent({ traceparent: 'nonsense', tracestate: 'a=1' })
    const [first, second] = exporter.getFinishedSpans()
    expect(first?.parentSpanContext).toBeUndefined()
    expect(second?.parentSpanContext).toBeUndefined()
    expect(first?.spanContext().traceId).not.toBe(second?.spanContext().traceId)
  })

  test('what ran when the worker was started is not the parent of all messages', async () => {
    register()
    const startup = api.trace.getTracer('test').startSpan('startup')
    await api.context.with(api.trace.setSpan(api.context.active(), startup), () => sent({}))
    expect(exporter.getFinishedSpans()[0]?.parentSpanContext).toBeUndefined()
  })

  test('a trace that the handler gave an output stays; that of an input handed on does not', async () => {
    register()
    const own = '00-11111111111111111111111111111111-2222222222222222-01'
    const router = new Router('billing')
      .use(tracing({ api }))
      .on(OrderPlaced, async (message) => [
        InvoiceSent(message.data, { extensions: { traceparent: own } }),
        message.with({ type: 'order.copied' }),
      ])
    const [kept, moved] = await sent({ traceparent: SENDER, tracestate: 'a=1' }, router)
    expect(kept?.extensions['traceparent']).toBe(own)
    expect(moved?.extensions['traceparent']).not.toBe(SENDER)
    expect(moved?.extensions['traceparent']).toContain('0af7651916cd43dd8448eb211c80319c')
  })

  test('a span says by which topic its message came, or its type where nothing was said', async () => {
    register()
    const wrapped = tracing({ api }).wrap(() => undefined)
    const context = { signal: new AbortController().signal, attempt: 1, router: 'billing', ack: never, nack: never }
    await wrapped(OrderPlaced(order), { ...context, topic: 'shop.orders' })
    await wrapped(OrderPlaced(order), context)
    const names = exporter.getFinishedSpans().map(({ attributes }) => attributes['messaging.destination.name'])
    expect(names).toEqual(['shop.orders', 'order.placed'])
  })

  test('a consumer hands on the topic that its message came by', async () => {
    register()
    const message = OrderPlaced(order)
    setTopic(message, 'shop.orders')
    const router = new Router('billing').use(tracing({ api })).on(OrderPlaced, () => {})
    const consumer = router.consume(listSource([message]))
    await consumer.runOnce()
    await consumer.stop()
    expect(exporter.getFinishedSpans()[0]?.attributes['messaging.destination.name']).toBe('shop.orders')
  })

  test('a failure marks the span, with the code and a summary', async () => {
    register()
    const router = billing()
    const wrapped = tracing({ api }).wrap((message, context) => router.handle(message, context))
    const context = { signal: new AbortController().signal, attempt: 2, router: 'billing', ack: never, nack: never }
    await expect(async () => wrapped(OrderPlaced({ ...order, fail: 'permanent' }), context)).rejects.toThrow('refused')
    expect(exporter.getFinishedSpans()[0]).toMatchObject({
      status: { code: api.SpanStatusCode.ERROR, message: 'Reject [REJECTED]: the card is refused' },
      attributes: { 'error.type': 'REJECTED', 'waybill.attempt': 2 },
      events: [],
    })
  })

  test('no payload stands in any span', async () => {
    register()
    const router = new Router('billing').use(tracing({ api }))
    const inner = billing()
    router.on(OrderPlaced, (message, context) => inner.handle(message, context))
    const consumer = router.consume(listSource(everyKind()), { to: () => {} })
    await consumer.runOnce()
    await consumer.stop()
    const spans = exporter.getFinishedSpans()
    expect(spans.length).toBe(6) // the unknown one meets no middleware
    const text = JSON.stringify(
      spans.map(({ name, attributes, status, events, links }) => ({ name, attributes, status, events, links })),
    )
    expect(text).toContain('cloudevents.event_id')
    expect(text).not.toContain('4111')
  })
})

describe('without a tracer', () => {
  test('no span and no async context is opened, and the very outputs of the handler are passed', async () => {
    const opened = vi.spyOn(api.context, 'with')
    const answer = Promise.resolve([])
    const wrapped = tracing({ api }).wrap(() => answer)
    const context = { signal: new AbortController().signal, attempt: 1, router: 'billing', ack: never, nack: never }
    expect(wrapped(OrderPlaced(order), context)).toBe(answer)
    expect(opened).not.toHaveBeenCalled()
    opened.mockRestore()
  })

  test('the sender’s trace is handed on all the same', async () => {
    const [invoice] = await sent({ traceparent: SENDER, tracestate: 'a=1' })
    expect(invoice?.extensions).toMatchObject({ traceparent: SENDER, tracestate: 'a=1' })
    expect(decodeData(invoice!)).toEqual(order)
  })

  test('a producer’s message stays as it is', () => {
    const message = event('a.b')({})
    expect(injectTrace(message, api)).toBe(message)
  })

  test('a tracer that is registered later is found', async () => {
    const router = billingWithTracing()
    await sent({}, router)
    register()
    await sent({}, router)
    expect(exporter.getFinishedSpans().length).toBe(1)
  })
})

test('an api that is none is refused', () => {
  expect(() => tracing({ api: {} as never })).toThrow('@opentelemetry/api')
  expect(() => injectTrace(OrderPlaced(order), undefined as never)).toThrow('@opentelemetry/api')
})

describe('traceparent', () => {
  test('what is formatted is parsed', () => {
    const hex = (length: number) =>
      fc
        .array(fc.constantFrom(...'0123456789abcdef'), { minLength: length, maxLength: length })
        .map((digits) => digits.join(''))
        .filter((text) => /[^0]/.test(text))
    const parents = fc.record({ traceId: hex(32), spanId: hex(16), traceFlags: fc.integer({ min: 0, max: 255 }) })
    fc.assert(
      fc.property(parents, (parent) => {
        expect(parseTraceparent(formatTraceparent(parent))).toEqual(parent)
      }),
    )
  })

  test.each([
    ['no text', 7],
    ['nothing', ''],
    ['capitals', SENDER.toUpperCase()],
    ['a trace of zeros', SENDER.replace(/0af7651916cd43dd8448eb211c80319c/, '0'.repeat(32))],
    ['a span of zeros', SENDER.replace('b7ad6b7169203331', '0'.repeat(16))],
    ['the version that is none', SENDER.replace(/^00/, 'ff')],
    ['more than version 00 has', `${SENDER}-more`],
    ['a short one', SENDER.slice(0, -1)],
  ])('%s is none', (_, text) => expect(parseTraceparent(text)).toBeUndefined())

  test('a version to come is read as far as it is known', () => {
    expect(parseTraceparent(`${SENDER.replace(/^00/, '01')}-more`)).toEqual(parseTraceparent(SENDER))
  })
})

function never(): never {
  throw new Error('not here')
}
