import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, expect, test } from 'vitest'
import { type AmqpConnection, rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { type Clock, systemClock } from '../../../src/core/index.ts'
import { aborted } from '../../../src/core/waiting.ts'
import { event, Relay, Router } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { faultProxy, recordTelemetry } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import {
  brokerAt,
  client,
  describeServers,
  dropQueues,
  fresh,
  message,
  NEVER,
  SERVERS,
  SOON,
  socketOf,
  until,
} from './support.ts'

setFlagsFromString('--expose_gc')
const collectGarbage = runInNewContext('gc') as () => void

describeServers(scale(SERVERS), 'connections', (url) => {
  const queues: string[] = []
  const freshQueue = () => {
    const queue = fresh()
    queues.push(queue)
    return queue
  }
  afterAll(() => dropQueues(url(), ...queues))

  test('one that comes after it was given up is ended, and its error ends nobody', async () => {
    const made: AmqpConnection[] = []
    const uncaught: unknown[] = []
    const listener = (error: unknown) => void uncaught.push(error)
    process.on('uncaughtException', listener)
    try {
      // Stopped and closed while it connects, and a handshake that is slower than the time-out.
      for (const timeout of [5000, 10]) {
        const gate = new AbortController()
        const resolve = () => gate.abort()
        const slow: typeof client = {
          async connect(...args) {
            const connection = await client.connect(args[0], { ...args[1], timeout: 5000 })
            made.push(connection)
            await aborted(gate.signal)
            return connection
          },
        }
        const broker = brokerAt(url(), { client: slow, timeout })
        const consumer = new Router('c').consume(broker.source({ queue: freshQueue() }))
        const starting = consumer.start().catch(() => {})
        await until('it connects', () => made.length > 0)
        const closing = [consumer.stop(), broker.close()]
        if (timeout === 5000) resolve()
        await Promise.all([...closing, starting])
        resolve()
        await until('it is ended', () => socketOf(made[0]!).destroyed)
        // What happens without a listener happens when the socket says that it is gone.
        await until('it has said so', () => socketOf(made[0]!).closed)
        made.length = 0
      }
    } finally {
      process.off('uncaughtException', listener)
    }
    expect(uncaught).toEqual([])
  })

  test('many sources share a connection: no warning of listeners, and a session that is over is forgotten', async () => {
    const warnings: string[] = []
    const listener = ({ name }: Error) => void warnings.push(name)
    process.on('warning', listener)
    const broker = brokerAt(url())
    const held: WeakRef<object>[] = []
    const opened = async () => {
      const session = await broker.source({ queue: freshQueue() }).open()
      held.push(new WeakRef(session))
      return () => session.close()
    }
    // Together: listeners of all of them are there at once.
    await (async () => {
      const closes = await Promise.all(Array.from({ length: 12 }, opened))
      await Promise.all(closes.map((close) => close()))
    })()
    await until('they are forgotten', () => {
      collectGarbage()
      return held.every((ref) => ref.deref() === undefined)
    })
    process.off('warning', listener)
    expect(warnings).toEqual([])
    await broker.close()
  })

  const refused: [string, () => string, RegExp][] = [
    ['a wrong password', () => url().replace('guest:guest', 'guest:s3cret'), /user "guest" was refused/],
    ['a wrong virtual host', () => `${url()}/nowhere`, /virtual host "nowhere" does not exist/],
  ]
  test.each(refused)('%s is an error of start(), for every consumer', async (_, place, text) => {
    const broker = rabbitmq({ client, url: place(), exchange: 'x', reconnect: SOON })
    for (let i = 0; i < 3; i++) {
      const consumer = new Router('refused').consume(broker.source({ queue: 'q' }))
      await expect(consumer.start()).rejects.toMatchObject({
        code: 'ACCESS_REFUSED',
        message: expect.stringMatching(text),
      })
      expect(consumer.status()).toMatchObject({ state: 'stopped', reason: expect.stringMatching(text) })
    }
    const relay = new Relay({ from: memory().outbox, to: broker })
    await expect(relay.start()).rejects.toMatchObject({
      code: 'ACCESS_REFUSED',
      message: expect.stringMatching(text),
    })
    await broker.close()
  })

  test('a relay whose server is only away starts, and sends when it is back', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    await proxy.refuse()
    const exchange = fresh('x')
    const broker = brokerAt(proxy.url(url()), { exchange })
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: broker, outage: { min: 50, max: 200 } })
    await relay.start()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, event<object>('order.placed')({})))
    await until('it is paused, and says why', () => {
      const { state, reason } = relay.status()
      return state === 'paused' && /cannot connect to RabbitMQ/.test(reason ?? '')
    })
    const queue = freshQueue()
    await proxy.restore()
    await (await broker.source({ queue }).open()).close()
    await until('it is sent', async () => (await db.outbox.admin.stats()).states.published.count === 1)
    await relay.stop()
    await broker.close()
  })

  test('a server that is only away is waited for, visibly, and nobody waits for its pauses at start', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    await proxy.refuse()
    // The pauses before the next attempts do not end before they are told to.
    let endPauses = () => {}
    const over = new Promise<void>((resolve) => {
      endPauses = resolve
    })
    const clock: Clock = {
      ...systemClock,
      async sleep(ms, signal) {
        if (![1000, 2000, 4000].includes(ms)) return systemClock.sleep(ms, signal)
        await Promise.race([over, new Promise((resolve) => signal?.addEventListener('abort', resolve))])
      },
    }
    const broker = brokerAt(proxy.url(url()), { clock, reconnect: { min: 1000, jitter: 0 } })
    const queue = freshQueue()
    const consumers = [queue, freshQueue(), freshQueue()].map((name) =>
      new Router('away', { unknown: 'ack-and-warn' }).consume(broker.source({ queue: name }), { name }),
    )
    for (const consumer of consumers) await consumer.start()
    await until('it says so', () => consumers.every((one) => one.status().state === 'failing'))
    expect(consumers[0]!.status().reason).toMatch(/cannot connect to RabbitMQ/)
    await proxy.restore()
    endPauses()
    await until('they run', () => consumers.every((one) => one.status().state === 'running'))
    expect((await broker.publish([message()], NEVER))[0]!.kind).toBe('ok')
    for (const consumer of consumers) await consumer.stop()
    await broker.close()
  })

  test('a password that is changed later does not end a consumer: it says so, and goes on trying', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    let wrong = false
    const changing: typeof client = {
      connect: (given, options) => client.connect(wrong ? given.replace('guest:guest', 'guest:old') : given, options),
    }
    const broker = brokerAt(proxy.url(url()), { client: changing })
    const outage = { min: 20, max: 50 }
    const consumer = new Router('changed', { unknown: 'ack-and-warn' }).consume(
      broker.source({ queue: freshQueue() }),
      {
        outage,
      },
    )
    const recorder = recordTelemetry(['flow.open_failed'])
    await consumer.start()
    await until('it runs', () => consumer.status().state === 'running')
    wrong = true
    proxy.cut()
    await until('it was told twice', () => recorder.of('flow.open_failed').length >= 2)
    expect(consumer.status().reason).toContain('user "guest" was refused')
    wrong = false
    await until('it runs', () => consumer.status().state === 'running')
    recorder.stop()
    await consumer.stop()
    await broker.close()
  })
})
