import type amqplib from 'amqplib'
import { afterAll, afterEach, expect, test } from 'vitest'
import type { RabbitmqBroker, RabbitmqSourceOptions } from '../../../src/brokers/rabbitmq/index.ts'
import {
  decodeData,
  event,
  type RawMessage,
  Reject,
  RetryLater,
  systemClock,
  telemetry,
  WaybillError,
} from '../../../src/core/index.ts'
import { run } from '../../../src/flow/index.ts'
import { type ConsumeOptions, Router } from '../../../src/router/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import {
  brokerAt,
  describeServers,
  dropQueues,
  fresh,
  message,
  NEVER,
  plainly,
  receive,
  SERVERS,
  spiedClient,
  until,
} from './support.ts'

/** Does not wait long for handlers that never end. */
const STOP_SOON = { grace: 10 }

const Changed = event<{ n: number; added?: string }>('order.status_changed')

let warned = 0

describeServers(scale(SERVERS), 'consumer', (url) => {
  const queues: string[] = []
  const ends: (() => Promise<unknown>)[] = []

  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })
  afterAll(() => dropQueues(url(), ...queues))

  function fixture(options: Partial<RabbitmqSourceOptions> = {}, spied = spiedClient()) {
    const broker = brokerAt(url(), { client: spied.client })
    const queue = fresh()
    queues.push(queue)
    ends.push(() => broker.close())
    const source = broker.source({ queue, ...options })
    return { broker, queue, source, ...spied }
  }

  async function running(
    { source }: Pick<ReturnType<typeof fixture>, 'source'>,
    handle: (message: RawMessage, context: { signal: AbortSignal; attempt: number }) => unknown,
    options: ConsumeOptions = {},
  ) {
    const router = new Router('orders').on(Changed, handle as never)
    const fast = { retry: { backoff: { min: 20, max: 50, jitter: 0 } }, poll: 50, maxPoll: 100 }
    const consumer = router.consume(source, { ...fast, ...options, retry: { ...fast.retry, ...options.retry } })
    await consumer.start()
    let stopped = false
    const stop = async () => {
      if (!stopped) await consumer.stop()
      stopped = true
    }
    ends.push(stop)
    await until('it consumes', async () => (await source.stats().catch(() => undefined))?.consumers === 1)
    return { stop }
  }

  const changed = (n = 1) => message(`{"n":${n}}`, { type: 'order.status_changed' })

  async function send(broker: RabbitmqBroker, ...messages: readonly RawMessage[]): Promise<void> {
    const outcomes = await broker.publish(messages, NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(messages.map(() => 'ok'))
  }

  /** As a producer that knows nothing of us. */
  async function sendPlain(exchange: RabbitmqBroker, key: string, body: string, options: amqplib.Options.Publish) {
    await plainly(url(), async (channel) => {
      channel.publish(nameOf(exchange), key, Buffer.from(body), options)
      await channel.waitForConfirms()
    })
  }

  const exchanges = new Map<RabbitmqBroker, string>()
  const nameOf = (broker: RabbitmqBroker) => exchanges.get(broker)!

  function withExchange(options: Partial<RabbitmqSourceOptions> = {}) {
    const exchange = fresh('x')
    const broker = brokerAt(url(), { exchange })
    exchanges.set(broker, exchange)
    const queue = fresh()
    queues.push(queue)
    ends.push(() => broker.close())
    return { broker, queue, source: broker.source({ queue, ...options }) }
  }

  test('the topology is declared: quorum queue, dead-letter exchange, delivery limit, at-least-once', async () => {
    const { source, queue, broker } = withExchange()
    await (await source.open()).close()
    // The server compares every argument with those of what is there.
    const declared = (args: Record<string, unknown>) =>
      plainly(url(), (channel) =>
        channel.assertQueue(queue, { arguments: args }).then(
          () => 'the same',
          (error: Error) => /arg '([^']+)'/.exec(error.message)?.[1] ?? error.message,
        ),
      )
    const expected = {
      'x-queue-type': 'quorum',
      'x-delivery-limit': 20,
      'x-dead-letter-exchange': `${nameOf(broker)}.dead`,
      'x-dead-letter-routing-key': queue,
      'x-dead-letter-strategy': 'at-least-once',
      'x-overflow': 'reject-publish',
    }
    expect(await declared(expected)).toBe('the same')
    for (const name of [
      'x-delivery-limit',
      'x-dead-letter-exchange',
      'x-dead-letter-strategy',
      'x-overflow',
    ] as const) {
      const { [name]: _, ...others } = expected
      expect([name, await declared(others)]).toEqual([name, name])
    }
  })

  test('prefetch: the server gives 20 unacked messages at most, or as many as are asked for', async () => {
    for (const [prefetch, expected] of [
      [undefined, 20],
      [3, 3],
    ]) {
      const { broker, source } = fixture(prefetch === undefined ? {} : { prefetch })
      const session = await source.open()
      await send(broker, ...Array.from({ length: 30 }, () => changed()))
      const taken = await receive(session, expected!)
      await until('the rest waits', async () => (await source.stats()).waiting === 30 - expected!)
      expect(await session.take({ count: 30, bytes: 1e6 }, NEVER)).toEqual([])
      expect(taken).toHaveLength(expected!)
      await session.close()
    }
  })

  test('five workers handle messages at once unless more or fewer are asked for', async () => {
    for (const [options, expected] of [
      [{}, 5],
      [{ concurrency: 2 }, 2],
    ] as const) {
      const it = fixture(options)
      let inside = 0
      const { stop } = await running(
        it,
        async (_, { signal }) => {
          inside++
          await systemClock.sleep(60_000, signal)
        },
        STOP_SOON,
      )
      await send(it.broker, ...Array.from({ length: 12 }, () => changed()))
      await until('all workers are busy', () => inside === expected)
      await systemClock.sleep(100)
      expect(inside).toBe(expected)
      await stop()
    }
  })

  test('the trace context travels in headers, ours and those of others', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    await send(broker, message('{}', { extensions: { traceparent, tracestate: 'a=b' } }))
    await sendPlain(broker, 'order.placed', '{}', { messageId: 'p', headers: { traceparent, tracestate: 'a=b' } })
    const received = await receive(session, 2)
    for (const { message } of received) expect(message.extensions).toMatchObject({ traceparent, tracestate: 'a=b' })
    expect(received[0]!.raw.properties.headers).toMatchObject({ traceparent, 'cloudEvents:traceparent': traceparent })
    await session.close()
  })

  test('events as other SDKs send them: content type as attribute or header, headers of HTTP, times and bytes of AMQP', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const named = (prefix: string, attributes: object) =>
      Object.fromEntries(
        Object.entries({ specversion: '1.0', source: '/s', type: 't', ...attributes }).map(([name, value]) => [
          prefix + name,
          value,
        ]),
      )
    const time = { '!': 'timestamp', value: 1_700_000_000 }
    const native = { id: 'a', datacontenttype: 'text/xml', time, signature: Buffer.from([0, 255]) }
    await sendPlain(broker, 'k', '<a/>', { headers: named('cloudEvents:', native) })
    await sendPlain(broker, 'k', '<b/>', { headers: { ...named('ce-', { id: 'b' }), 'content-type': 'text/xml' } })
    const whole = JSON.stringify({ ...named('', { id: 'c' }), datacontenttype: 'text/xml', data: '<c/>' })
    await sendPlain(broker, 'k', whole, { headers: { 'content-type': 'application/cloudevents+json' } })
    const read = (await receive(session, 3)).map(({ message }) => message)
    expect(read.map((one) => [one.id, one.datacontenttype, decodeData(one)])).toEqual(
      ['a', 'b', 'c'].map((id) => [id, 'text/xml', `<${id}/>`]),
    )
    expect([read[0]!.time, read[0]!.extensions['signature']]).toEqual([
      '2023-11-14T22:13:20.000Z',
      Buffer.from([0, 255]),
    ])
    await session.close()
  })

  test('a consumer that knows nothing of CloudEvents finds version, id and type where it looks for them', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    await send(broker, message('{}', { id: 'old' }), message('{}', { id: 'new', extensions: { eventversion: 3 } }))
    const raw = (await receive(session, 2)).map((delivery) => delivery.raw.properties)
    expect(raw.map(({ messageId, type, headers }) => [messageId, type, headers!['event_version']])).toEqual([
      ['old', 'thing.happened', 1],
      ['new', 'thing.happened', 3],
    ])
    await session.close()
  })

  test('event_version is 1 when absent, and any whole number or its digits otherwise', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const versions: [unknown, number][] = [
      [undefined, 1],
      [2, 2],
      [{ '!': 'int64', value: 3 }, 3],
      [{ '!': 'short', value: 4 }, 4],
      ['5', 5],
      [Buffer.from('6'), 6],
    ]
    for (const [given, expected] of versions) {
      const headers = given === undefined ? {} : { event_version: given }
      await sendPlain(broker, 'order.placed', '{}', { messageId: `v${expected}`, headers })
    }
    const received = await receive(session, versions.length)
    const seen = received.map(({ message }) => [message.id, message.type, message.version])
    expect(seen.sort()).toEqual(versions.map(([, expected]) => [`v${expected}`, 'order.placed', expected]))
    await session.close()
  })

  test('event_version of a wrong type is 1, and that is told once', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const recorder = recordTelemetry(['warning'])
    const odd = [true, 1.5, { nested: 1 }, 'two', { '!': 'timestamp', value: 7 }, ['2'], null]
    for (const [i, event_version] of odd.entries()) {
      await sendPlain(broker, 'order.placed', '{}', { messageId: `odd${i}`, headers: { event_version } })
    }
    const received = await receive(session, odd.length)
    expect(received.map(({ message: { version } }) => version)).toEqual(odd.map(() => 1))
    warned += recorder.of('warning').filter(({ message }) => message.includes('event_version')).length
    // Once in a process, whichever server they come from.
    expect(warned).toBe(1)
    recorder.stop()
    await session.close()
  })

  test('a number that is no version is a permanent failure of that message alone', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const odd = [0, -1, '0', { '!': 'int64', value: 2 ** 40 }]
    for (const [i, event_version] of odd.entries()) {
      await sendPlain(broker, 'order.placed', '{}', { messageId: `odd${i}`, headers: { event_version } })
    }
    await sendPlain(broker, 'order.placed', '{}', { messageId: 'good', headers: { event_version: 2 } })
    const [good] = await receive(session, 1)
    expect(good!.message.id).toBe('good')
    await until('they are dead', async () => (await source.stats()).dead === odd.length)
    for (const { reason } of await source.deadLetters()) expect(reason).toContain('event_version')
    await session.close()
  })

  test('each version goes to its handler; an unknown newer one is warned about and tried with the newest', async () => {
    const it = fixture()
    const handled: string[] = []
    const Status = Changed.version(2, undefined, (data) => data)
    const router = new Router('versions')
      .on(Status.v(1), ({ id }) => void handled.push(`v1 ${id}`))
      .on(Status.v(2), ({ id }) => void handled.push(`v2 ${id}`))
    const recorder = recordTelemetry()
    const consumer = router.consume(it.source)
    await consumer.start()
    ends.push(() => consumer.stop())
    await until('it consumes', async () => (await it.source.stats().catch(() => undefined))?.consumers === 1)
    const of = (id: string, eventversion: number) =>
      message('{"n":1}', { id, type: 'order.status_changed', extensions: { eventversion } })
    await send(it.broker, of('a', 1), of('b', 2), of('c', 7))
    await until('all are handled', () => handled.length === 3)
    expect(handled.sort()).toEqual(['v1 a', 'v2 b', 'v2 c'])
    expect(recorder.of('router.newer_version')).toMatchObject([{ id: 'c', version: 7, newestKnown: 2 }])
    recorder.stop()
  })

  test('an unknown type is acked with a warning: the producer may be ahead', async () => {
    const it = fixture()
    const recorder = recordTelemetry()
    await running(it, () => {})
    await send(it.broker, message('{}', { type: 'order.teleported' }))
    await until('it was told', () => recorder.of('router.unknown_type').length === 1)
    await until('nothing is left', async () => {
      const { waiting, retrying, dead } = await it.source.stats()
      return waiting + retrying + dead === 0
    })
    recorder.stop()
  })

  test('success: acked, and gone', async () => {
    const it = fixture()
    const seen: number[] = []
    const { stop } = await running(it, ({ data }) => void seen.push((data as unknown as { n: number }).n))
    await send(it.broker, changed(1), changed(2))
    await until('both are handled', () => seen.length === 2)
    await stop()
    expect(await it.source.stats()).toEqual({ waiting: 0, retrying: 0, dead: 0, consumers: 0 })
  })

  test('transient error: tried again after a delay, the attempt counted by us', async () => {
    const it = fixture()
    const tries: { attempt: number; at: number }[] = []
    await running(
      it,
      (_, { attempt }) => {
        tries.push({ attempt, at: performance.now() })
        if (attempt < 3) throw new Error('busy')
      },
      { retry: { backoff: { min: 300, max: 300, jitter: 0 } } },
    )
    await send(it.broker, changed())
    await until('the third try', () => tries.length === 3)
    expect(tries.map(({ attempt }) => attempt)).toEqual([1, 2, 3])
    for (const i of [1, 2]) expect(tries[i]!.at - tries[i - 1]!.at).toBeGreaterThanOrEqual(290)
  })

  test('the pause that is told while the server is away is the one that follows', async () => {
    const away = brokerAt('amqp://127.0.0.1:1', { reconnect: { min: 300, max: 300, jitter: 0 } })
    ends.push(() => away.close())
    const told: { at: number; retryIn: number }[] = []
    const stop = telemetry['flow.open_failed'].subscribe(({ retryIn }) => told.push({ at: performance.now(), retryIn }))
    const router = new Router('orders').on(Changed, () => {})
    const consumer = router.consume(away.source({ queue: fresh() }), {
      outage: { min: 10, max: 10, jitter: 0 },
    })
    await consumer.start()
    await until('three failures', () => told.length === 3)
    await consumer.stop()
    stop()
    for (const i of [0, 1]) {
      const followed = told[i + 1]!.at - told[i]!.at
      expect(told[i]!.retryIn).toBeGreaterThanOrEqual(290)
      expect(followed).toBeGreaterThanOrEqual(290)
    }
  })

  test('the routing key is told, also after a retry', async () => {
    const it = fixture()
    const recorder = recordTelemetry(['message.handled', 'message.dead'])
    const topics: unknown[] = []
    await running(it, (_, context) => {
      topics.push((context as { topic?: string }).topic)
      throw context.attempt < 2 ? new Error('busy') : new Reject('no')
    })
    await it.broker.publisher({ topic: 'shop.orders.changed' }).publish([changed()], NEVER)
    await until('it is dead', async () => (await it.source.stats()).dead === 1)
    recorder.stop()
    expect(topics).toEqual(['shop.orders.changed', 'shop.orders.changed'])
    const handled = recorder.of('message.handled').map(({ topic, attempt }) => ({ topic, attempt }))
    expect(handled).toEqual([1, 2].map((attempt) => ({ topic: 'shop.orders.changed', attempt })))
    expect(recorder.of('message.dead')).toMatchObject([{ topic: 'shop.orders.changed', attempt: 2 }])
  })

  test('permanent error: to the dead letters at once', async () => {
    const it = fixture()
    let calls = 0
    await running(it, () => {
      calls++
      throw new Reject('no such order')
    })
    await send(it.broker, changed())
    await until('it is dead', async () => (await it.source.stats()).dead === 1)
    expect(calls).toBe(1)
    const [letter] = await it.source.deadLetters()
    expect(letter).toMatchObject({ attempts: 1, reason: 'Reject [REJECTED]: no such order' })
  })

  test('five deliveries, and then the dead letters; our own header decides', async () => {
    const it = fixture()
    const attempts: number[] = []
    await running(it, (_, { attempt }) => {
      attempts.push(attempt)
      throw new Error('not today')
    })
    await send(it.broker, changed())
    await until('it is dead', async () => (await it.source.stats()).dead === 1)
    expect(attempts).toEqual([1, 2, 3, 4, 5])
    const [letter] = await it.source.deadLetters()
    expect(letter).toMatchObject({ attempts: 5, reason: '5 attempts: Error: not today' })
    expect(letter!.properties.headers).toMatchObject({ 'x-waybill-attempts': 5 })
  })

  test('by default the tries of a message outlast a deploy: the last comes ten minutes after the first', async () => {
    const { broker, source } = withExchange()
    const consumer = new Router('orders')
      .on(Changed, () => {
        throw new Error('until the deploy is over')
      })
      .consume(source)
    ends.push(() => consumer.stop())
    await consumer.start()
    await until('it consumes', async () => (await source.stats().catch(() => undefined))?.consumers === 1)
    const recorder = recordTelemetry(['message.retrying'])
    ends.push(async () => recorder.stop())
    // One for each time that it has failed already: nobody waits ten minutes here.
    for (let n = 0; n < 4; n++) {
      const headers = n === 0 ? {} : { 'x-waybill-attempts': n }
      await sendPlain(broker, 'order.status_changed', '{"n":1}', { messageId: `after ${n}`, headers })
    }
    const pauses = () => recorder.of('message.retrying').filter(({ id, attempt }) => id === `after ${attempt - 1}`)
    await until('each has failed once more', () => pauses().length === 4)
    const all = pauses().reduce((sum, { retryIn }) => sum + retryIn, 0)
    expect(all).toBeGreaterThan(9 * 60_000)
    expect(all).toBeLessThan(11 * 60_000)
    expect((await source.stats()).dead).toBe(0)
  })

  test('a message may take 30 s; then its signal aborts and it is tried again', async () => {
    const backoff = { min: '1s', max: '10m', factor: 8, jitter: '200ms' }
    const defaults = { concurrency: 5, retry: { attempts: 5, backoff }, timeout: 30_000 }
    expect(fixture().source.defaults).toEqual(defaults)
    const it = fixture({ timeout: 200 })
    const reasons: unknown[] = []
    await running(it, (_, { signal, attempt }) => {
      if (attempt > 1) return
      signal.addEventListener('abort', () => reasons.push(signal.reason))
      return new Promise(() => {})
    })
    await send(it.broker, changed())
    await until('its signal has aborted', () => reasons.length === 1)
    expect(reasons[0]).toMatchObject({ code: 'TIMEOUT' })
    await until('it is done', async () => {
      const { waiting, retrying, dead } = await it.source.stats()
      return waiting + retrying + dead === 0
    })
  })

  test('shutdown: what is unsettled is requeued without penalty, however often', async () => {
    const it = fixture({ deliveryLimit: 4 })
    const attempts: number[] = []
    await (await it.source.open()).close()
    await send(it.broker, changed(1), changed(2))
    for (let round = 0; round < 8; round++) {
      const before = attempts.length
      const { stop } = await running(
        it,
        (_, { attempt, signal }) => {
          attempts.push(attempt)
          return systemClock.sleep(60_000, signal).then(() => {
            throw signal.reason
          })
        },
        { ...STOP_SOON, concurrency: 1 },
      )
      await until('it is taken', () => attempts.length > before)
      await stop()
    }
    expect(new Set(attempts)).toEqual(new Set([1]))
    // The server's own limit of 4 has not been reached either.
    await until('both wait', async () => (await it.source.stats()).waiting === 2)
    expect((await it.source.stats()).dead).toBe(0)
  }, 60_000)

  test('shutdown: what is in flight may finish, and is acked; what comes then is left for others', async () => {
    const it = fixture()
    let finish = () => {}
    let began = 0
    const { stop } = await running(it, () => {
      began++
      return new Promise<void>((resolve) => {
        finish = resolve
      })
    })
    await send(it.broker, changed())
    await until('it is in flight', () => began === 1)
    const stopping = stop()
    await systemClock.sleep(50)
    await send(it.broker, changed(2))
    await systemClock.sleep(50)
    finish()
    await stopping
    expect(began).toBe(1)
    await until('it waits', async () => (await it.source.stats()).waiting === 1)
    expect(await it.source.stats()).toEqual({ waiting: 1, retrying: 0, dead: 0, consumers: 0 })
  })

  test('shutdown of the whole process: consumers first, then connections, one call', async () => {
    const it = fixture()
    let finish = () => {}
    let began = false
    const router = new Router('orders').on(Changed, () => {
      began = true
      return new Promise<void>((resolve) => {
        finish = resolve
      })
    })
    const stop = new AbortController()
    const ended = run([it.broker, router.consume(it.source)], { signal: stop.signal })
    await until('it consumes', async () => (await it.source.stats().catch(() => undefined))?.consumers === 1)
    await send(it.broker, changed())
    await until('it is in flight', () => began)
    stop.abort()
    await systemClock.sleep(50)
    finish()
    await ended
    expect((await it.broker.publish([changed()], NEVER))[0]!.kind, 'its connections are closed').toBe('down')
    const left = await plainly(url(), (channel) => channel.checkQueue(it.queue))
    expect(left).toMatchObject({ messageCount: 0, consumerCount: 0 })
  })

  test('RetryLater: as late as the handler says, beyond the longest queue too', async () => {
    const it = fixture({ retryDelays: [200, 400] })
    const at: number[] = []
    await running(it, (_, { attempt }) => {
      at.push(performance.now())
      if (attempt === 1) throw new RetryLater(1300)
    })
    await send(it.broker, changed())
    await until('it came again', () => at.length === 2)
    expect(at[1]! - at[0]!).toBeGreaterThanOrEqual(1290)
    await plainly(url(), async (channel) => {
      for (const bound of [200, 400]) await channel.deleteQueue(`${it.queue}.retry.${bound}ms`)
    })
  })

  test('poison: dead with reason, attempts and the original headers, and sent back with all its attempts', async () => {
    const it = withExchange({ topics: ['order.*'] })
    let mended = false
    const attempts: number[] = []
    await running(it, (_, { attempt }) => {
      attempts.push(attempt)
      if (!mended) throw new WaybillError('STOCK', 'no such shelf')
    })
    const headers = { 'x-tenant': 'acme', nested: { a: [1, 'two', true] }, event_version: 1, CC: ['elsewhere.else'] }
    const properties = { messageId: 'poison', correlationId: 'c-1', replyTo: 'answers', appId: 'shop', headers }
    const sent = { ...properties, contentType: 'application/json', userId: 'guest', type: 'order.status_changed' }
    await sendPlain(it.broker, 'order.changed', '{"n":7}', sent)
    await until('it is dead', async () => (await it.source.stats()).dead === 1)
    const [letter] = await it.source.deadLetters()
    expect(letter).toMatchObject({
      id: 'poison',
      queue: it.queue,
      attempts: 5,
      reason: '5 attempts: WaybillError [STOCK]: no such shelf',
      exchange: nameOf(it.broker),
      routingKey: 'order.changed',
    })
    expect(letter!.properties).toMatchObject({ messageId: 'poison', correlationId: 'c-1', replyTo: 'answers' })
    expect(letter!.properties.headers).toMatchObject({ 'x-tenant': 'acme', nested: { a: [1, 'two', true] } })
    expect(letter!.content.toString()).toBe('{"n":7}')
    mended = true
    expect(await it.source.rearm('another')).toBe(0)
    expect(await it.source.rearm('poison')).toBe(1)
    await until('it is handled', () => attempts.length === 6)
    expect(attempts.at(-1)).toBe(1)
    await until('nothing is left', async () => {
      const { waiting, retrying, dead } = await it.source.stats()
      return waiting + retrying + dead === 0
    })
  })

  test('dead letters are sent back or dropped by id, by a function, or all', async () => {
    const it = fixture()
    const session = await it.source.open()
    const sent = Array.from({ length: 6 }, (_, i) => message('{}', { id: `d${i}` }))
    await send(it.broker, ...sent)
    const reason = { kind: 'dead', reason: 'bad', error: new Error('bad') } as const
    await session.settle((await receive(session, 6)).map((delivery) => [delivery, reason] as const))
    expect((await it.source.deadLetters({ count: 2 })).map(({ id }) => id)).toEqual(['d0', 'd1'])
    expect(await it.source.discard('d3')).toBe(1)
    expect(await it.source.rearm(({ id }) => id === 'd1' || id === 'd4')).toBe(2)
    expect((await receive(session, 2)).map(({ message, attempts }) => [message.id, attempts]).sort()).toEqual([
      ['d1', 0],
      ['d4', 0],
    ])
    expect((await it.source.deadLetters()).map(({ id }) => id).sort()).toEqual(['d0', 'd2', 'd5'])
    expect(await it.source.rearm()).toBe(3)
    expect((await it.source.stats()).dead).toBe(0)
    await session.close()
  })

  test('queues that share their dead letters: each sends back its own only, also those of one event', async () => {
    const exchange = fresh('x')
    const broker = brokerAt(url(), { exchange })
    ends.push(() => broker.close())
    const [billing, shipping, shared] = [fresh(), fresh(), fresh()]
    queues.push(billing, shipping, shared)
    const sourceOf = (queue: string) => broker.source({ queue, deadLetter: { queue: shared } })
    const [ofBilling, ofShipping] = [sourceOf(billing), sourceOf(shipping)]
    const sessions = [await ofBilling.open(), await ofShipping.open()]
    await send(broker, message('{}', { id: 'twin' }))
    const reason = { kind: 'dead', reason: 'bad', error: new Error('bad') } as const
    for (const session of sessions)
      await session.settle((await receive(session, 1)).map((one) => [one, reason] as const))
    // One that the server has moved by itself.
    await plainly(url(), async (channel) => {
      const death = { queue: shipping, reason: 'delivery_limit' }
      channel.sendToQueue(shared, Buffer.from('{}'), { messageId: 'moved', headers: { 'x-death': [death] } })
      await channel.waitForConfirms()
    })
    const places = async () => (await ofBilling.deadLetters()).map(({ id, queue }) => [id, queue]).sort()
    await until('all are there', async () => (await places()).length === 3)
    expect(await ofBilling.rearm('moved')).toBe(0)
    expect(await ofBilling.rearm('twin')).toBe(1)
    expect(await ofBilling.rearm()).toBe(0)
    await until('the others are there', async () => (await places()).length === 2)
    expect(await places()).toEqual(
      [
        ['moved', shipping],
        ['twin', shipping],
      ].sort(),
    )
    expect((await receive(sessions[0]!, 1)).map((one) => one.message.id)).toEqual(['twin'])
    expect(await ofBilling.discard(({ id }) => id === 'moved')).toBe(1)
    expect(await ofShipping.rearm()).toBe(1)
    expect((await receive(sessions[1]!, 1)).map((one) => one.message.id)).toEqual(['twin'])
    for (const session of sessions) await session.close()
  })

  test('what cannot be decoded is dead alone, with the reason, and told', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const recorder = recordTelemetry()
    await sendPlain(broker, 'order.placed', '{}', {})
    await sendPlain(broker, 'x', '{"specversion":"1.0"', {
      contentType: 'application/cloudevents+json',
      messageId: 'b',
    })
    await sendPlain(broker, 'x', '{}', { headers: { 'cloudEvents:specversion': '1.0', 'cloudEvents:id': '1' } })
    await send(broker, message('{}', { id: 'fine' }))
    expect((await receive(session, 1))[0]!.message.id).toBe('fine')
    await until('three are dead', async () => (await source.stats()).dead === 3)
    const reasons = (await source.deadLetters()).map(({ reason }) => reason).join('\n')
    expect(reasons).toContain('it has no id')
    expect(reasons).toContain('MALFORMED_MESSAGE')
    expect(recorder.of('message.dead')).toHaveLength(3)
    recorder.stop()
    await session.close()
  })

  test('structured events of others arrive', async () => {
    const { broker, source } = withExchange()
    const session = await source.open()
    const structured = { specversion: '1.0', id: 's', source: '/o', type: 'order.placed', data: { n: 1 } }
    const contentType = 'application/cloudevents+json; charset=utf-8'
    await sendPlain(broker, 'x', JSON.stringify(structured), { contentType })
    const [received] = await receive(session, 1)
    expect(received!.message).toMatchObject({ id: 's', source: '/o', type: 'order.placed', data: '{"n":1}' })
    await session.close()
  })

  test('an ack never goes to a channel it did not come from', async () => {
    const { broker, source } = fixture()
    const [first, second] = [await source.open(), await source.open()]
    await send(broker, ...Array.from({ length: 6 }, () => changed()))
    const [mine] = await receive(first, 3)
    await receive(second, 3)
    // Both channels have given a delivery of the same tag.
    expect(await second.settle([[mine!, { kind: 'done' }]])).toBe(1)
    expect([first.lost.aborted, second.lost.aborted]).toEqual([false, false])
    await first.close()
    await second.close()
    await until('all six wait', async () => (await source.stats()).waiting === 6)
  })
})
