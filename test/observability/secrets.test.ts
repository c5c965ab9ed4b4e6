import * as api from '@opentelemetry/api'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { encodeData, event, Reject, type StandardSchema, Unavailable } from '../../src/core/index.ts'
import { tracing } from '../../src/observability/index.ts'
import type { OutboxAdmin } from '../../src/outbox/admin.ts'
import { Relay } from '../../src/outbox/relay.ts'
import { deadLetter, Router } from '../../src/router/index.ts'
import { type BrokerFactory, collector } from '../../src/testing/index.ts'
import { factory as kafka, onServer } from '../brokers/kafka/support.ts'
import { connecting, factory as nats } from '../brokers/nats/support.ts'
import { factory as rabbitmq } from '../brokers/rabbitmq/support.ts'
import { ioredis, factory as redisStreams } from '../brokers/redis-streams/support.ts'
import { service } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { CARD, data, exporter, Paid, QUOTED, searched, THROWN, traced, watch } from './secrets-support.ts'
import { WORLDS, type World } from './worlds.ts'

let seen: ReturnType<typeof watch>
let untraced = () => {}
beforeAll(() => {
  untraced = traced()
})
afterAll(() => untraced())
beforeEach(() => {
  exporter.reset()
  seen = watch()
})
afterEach(() => seen.stop())

describe.each(Object.keys(WORLDS))('secrets on the way out of %s', (kind) => {
  let world: World
  beforeEach(async () => {
    world = await WORLDS[kind]!()
  })
  afterEach(() => world.end())

  test('no error of a publisher writes what a payload holds: not to logs, last_error, metrics', async () => {
    await world.enqueue(THROWN.map((_, n) => Paid(data(n), { tenant: 'acme' })))
    const to = async (message: { data: unknown }) => {
      const paid = JSON.parse(String(message.data)) as ReturnType<typeof data>
      throw THROWN[paid.n]!(paid)
    }
    const relay = new Relay({
      from: world.outbox,
      to: to as never,
      retry: { attempts: 2, backoff: { min: 0, jitter: 0 } },
    })
    for (let round = 0; round < 4; round++) await relay.runOnce()
    await relay.stop()
    const entries = await (world.outbox.admin as OutboxAdmin).list({}, { limit: 100 })
    expect(entries.filter(({ lastError }) => lastError !== undefined).length).toBeGreaterThan(THROWN.length - 3)
    searched('last_error', entries.map(({ lastError }) => lastError).join('\n'))
    const text = await seen.all()
    expect(text).toContain('message.dead')
    searched('logs and metrics', text)
  })

  test('nor one that fails as a whole', async () => {
    await world.enqueue([Paid(data(1)), Paid(data(2))])
    let calls = 0
    const to = {
      name: 'broker',
      features: {},
      async publish(messages: readonly { data: unknown }[]): Promise<never> {
        throw ++calls % 2 === 0
          ? new Unavailable(`away with ${messages[0]!.data}`)
          : new Error(`all of ${QUOTED} ${CARD}`)
      },
    }
    const relay = new Relay({ from: world.outbox, to: to as never })
    await relay.runOnce()
    await relay.runOnce()
    await relay.stop()
    searched('logs and metrics', await seen.all())
    searched('status', JSON.stringify(relay.status()))
  })
})

const BROKERS: Readonly<Record<string, () => BrokerFactory>> = {
  rabbitmq: () => rabbitmq('rabbitmq', () => service('rabbitmq').url),
  nats: () => nats('nats', connecting(service('nats').url)),
  kafka: () => kafka('kafka', () => onServer(service('kafka').url)),
  'in-process': () => ({
    name: 'in-process',
    features: {},
    async create() {
      const broker = new InProcessBroker()
      const deadLetters = async (group: string) => broker.dead(group) as never
      return { publisher: broker, source: (group) => broker.source(group), deadLetters, close: () => broker.close() }
    },
  }),
  'redis-streams': () => redisStreams('redis-streams', () => ioredis(service('redis').url)),
}

describe.each(Object.keys(BROKERS))('secrets on the way through %s', (kind) => {
  test('no error of a handler writes what a payload holds: not to logs, spans, metrics, dead letters', async () => {
    const broker = await BROKERS[kind]!().create()
    const handle = (paid: ReturnType<typeof data>) => {
      throw THROWN[paid.n]!(paid)
    }
    const router = new Router('billing').use(tracing({ api })).on(Paid, ({ data: paid }) => handle(paid))
    const consumer = router.consume(broker.source('one'), {
      retry: { attempts: 1, backoff: { min: 0, jitter: 0 } },
      poll: '20ms',
      maxPoll: '50ms',
    })
    try {
      await consumer.start()
      await eventually('it is there', () => seen.lines.some((line) => line.includes('waybill:flow.opened')))
      const outcomes = await broker.publisher.publish(
        THROWN.map((_, n) => encodeData(Paid(data(n)))),
        new AbortController().signal,
      )
      expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
      // Each was handled once, had its span, and was given up, whatever was thrown.
      const dead = () => seen.lines.filter((line) => line.includes('"waybill:message.dead"')).length
      const spans = () => new Set(exporter.getFinishedSpans().map((one) => one.attributes['messaging.message.id'])).size
      const all = THROWN.length
      await eventually('all were handled', () => dead() >= all && spans() >= all, { limit: 60_000 })
      await consumer.stop()
      expect([dead(), spans()]).toEqual([all, all])
      const letters = await broker.deadLetters!('one')
      expect(letters).toHaveLength(all)
      searched('dead letters', letters.map(({ reason }) => reason).join('\n'))
      searched('logs, spans and metrics', await seen.all())
    } finally {
      await consumer.stop()
      await broker.close()
    }
  })
})

/** A schema whose messages quote what they were given, as those of some libraries do. */
const quoting: StandardSchema<ReturnType<typeof data>> = {
  '~standard': {
    version: 1,
    vendor: 'test',
    validate: (value) => ({
      issues: [
        { message: `${(value as { card?: string }).card} of ${QUOTED} is no card` },
        { message: JSON.stringify(value) },
      ],
    }),
  },
}
const Checked = event('card.checked', quoting)

describe.each(Object.keys(BROKERS))('secrets that cannot be read, through %s', (kind) => {
  test('data that is no JSON, or not as its schema says, or of a type nobody knows', async () => {
    const broker = await BROKERS[kind]!().create()
    const router = new Router('billing', { unknown: 'dead-letter' }).use(tracing({ api })).on(Checked, () => {})
    const consumer = router.consume(broker.source('one'), { retry: { attempts: 1 }, poll: '20ms', maxPoll: '50ms' })
    try {
      await consumer.start()
      await eventually('it is there', () => seen.lines.some((line) => line.includes('waybill:flow.opened')))
      const json = JSON.stringify(data(1))
      const texts = [`${CARD} ${json}`, json.slice(0, -5), json, json]
      const messages = texts.map((text, n) => {
        const type = n === 3 ? 'card.unheard' : 'card.checked'
        return encodeData(Paid(data(n)).with({ type }).withData(text, 'raw'))
      })
      const outcomes = await broker.publisher.publish(messages, new AbortController().signal)
      expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
      const dead = () => seen.lines.filter((line) => line.includes('"waybill:message.dead"')).length
      await eventually('all were given up', () => dead() >= texts.length, { limit: 60_000 })
      await consumer.stop()
      const letters = await broker.deadLetters!('one')
      expect(letters).toHaveLength(texts.length)
      searched('dead letters', letters.map(({ reason }) => reason).join('\n'))
      searched('logs, spans and metrics', await seen.all())
    } finally {
      await consumer.stop()
      await broker.close()
    }
  })
})

test('the middleware deadLetter keeps the reason, and nothing of the payload', async () => {
  const aside = collector()
  const router = new Router('billing')
    .use(tracing({ api }))
    .use(deadLetter({ to: aside }))
    .on(Paid, ({ data: paid }) => {
      throw new Reject(`card ${paid.card} is refused`)
    })
  const context = { signal: new AbortController().signal, attempt: 1, router: 'billing', topic: 'x' }
  await router.handle(Paid(data(1)), context as never)
  const [letter] = aside.messages
  expect(letter!.extensions['deadreason']).toBe('Reject [REJECTED]: card … is refused')
  searched('logs and spans', await seen.all())
})
