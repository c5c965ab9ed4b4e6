import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { expect } from 'vitest'
import { event, Reject, RetryLater } from '../../src/core/index.ts'
import { logTo } from '../../src/observability/index.ts'
import { scraped } from './worlds.ts'

/** Stand in payloads, nested and with quotes in them; nothing that is written may have any of them, or begin with them. */
export const CARD = '4111-1111-1111-1234'
export const QUOTED = `it's "Kunigunde" \\ {Müller}`
export const SHORT = 'pin-9'
export const NUMBER = 734_912
const SECRETS = [CARD, 'Kunigunde', 'Müller', SHORT, String(NUMBER), 'hunter2', 'sesame-open']
export const data = (n: number) => ({ n, card: CARD, deep: [{ holder: { name: QUOTED } }, [SHORT]], amount: NUMBER })

export const Paid = event<ReturnType<typeof data>>('card.paid')

/** An error as pg has them, with what must never be read. */
function pgError(): Error {
  return Object.assign(new Error('duplicate key value violates unique constraint "cards_pkey"'), {
    code: '23505',
    severity: 'ERROR',
    detail: `Key (card)=(${CARD}) already exists.`,
    where: `COPY cards, line 1: "${QUOTED}"`,
  })
}

/** Every way in which what users' code throws could carry the payload, by the number in it. */
export const THROWN: readonly ((paid: ReturnType<typeof data>) => unknown)[] = [
  (paid) => new Error(`charging ${paid.card} failed`),
  (paid) => new Error(`bad: ${JSON.stringify(paid)}`),
  (paid) => new Reject(`${paid.deep[0] && JSON.stringify(paid.deep[0])} is refused`),
  (paid) => new Reject(`card ${paid.card} of ${QUOTED} for ${paid.amount} with ${SHORT}`),
  (paid) => new RetryLater('1h', `ask again for ${paid.card}`),
  (paid) => new Error('outer', { cause: new Error(`inner ${paid.card}`, { cause: new Error(QUOTED) }) }),
  (paid) => new AggregateError([new Error(`one ${paid.card}`), new Error(QUOTED)], `two of ${paid.amount}`),
  (paid) => paid,
  (paid) => `a text: ${paid.card}`,
  () => pgError(),
  (paid) => new Error(`${paid.card.slice(0, 12)}… could not be read`),
  () => new Error('connect to amqp://bill:hunter2@broker:5672/shop?x=1 failed'),
  () => new Error('login', { cause: new Error('postgres://app:hunter2@db/shop refused; password=sesame-open') }),
  (paid) => new Reject(encodeURIComponent(paid.card.replaceAll('-', ' ')) + paid.card),
]

/** Where the spans of a test are. */
export const exporter = new InMemorySpanExporter()

/** Everything that is written while a test runs. */
export function watch() {
  const lines: string[] = []
  const stops = [
    logTo((level, text, fields) => lines.push(JSON.stringify({ level, text, ...fields })), { level: 'debug' }),
    logTo({ ...console, debug: keep, info: keep, warn: keep, error: keep, log: keep } as never, { level: 'debug' }),
  ]
  function keep(text: string): void {
    lines.push(text)
  }
  const metrics = scraped()
  return {
    lines,
    async all(): Promise<string> {
      const spans = exporter
        .getFinishedSpans()
        .map(({ name, attributes, status, events }) => ({ name, attributes, status, events }))
      return [...lines, JSON.stringify(spans), await metrics.registry.metrics()].join('\n')
    },
    stop() {
      metrics.stop()
      for (const stop of stops) stop()
    },
  }
}

export function searched(what: string, text: string): void {
  for (const secret of SECRETS) expect(text.includes(secret), `${secret} in ${what}`).toBe(false)
  expect(text.includes(CARD.slice(0, 9)), `the beginning of ${CARD} in ${what}`).toBe(false)
}

/** Spans are made from now on, as with a registered SDK; returns the way to end that. */
export function traced(): () => void {
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  const tracer = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] })
  api.trace.setGlobalTracerProvider(tracer)
  return () => {
    api.trace.disable()
    api.context.disable()
  }
}
