import { afterAll, expect, test } from 'vitest'
import type { AmqpClient } from '../../../src/brokers/rabbitmq/index.ts'
import { type RawMessage, systemClock, Unavailable } from '../../../src/core/index.ts'
import { DONE, Flow, type Outcome } from '../../../src/flow/index.ts'
import { Relay } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { faultProxy, recordTelemetry, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import {
  brokerAt,
  client,
  describeServers,
  dropQueues,
  fresh,
  message,
  NEVER,
  plainly,
  receive,
  SERVERS,
  SOON,
  sever,
  socketOf,
  spiedClient,
  until,
} from './support.ts'

const kinds = (outcomes: readonly Outcome[]) => outcomes.map(({ kind }) => kind)
/** Probes soon, and has few attempts to lose. */
const QUICK = { outage: { min: 20, max: 100 }, retry: { attempts: 3, backoff: { min: 1, max: 1 } } } as const
const some = (count: number): RawMessage[] => Array.from({ length: count }, () => message())

/** As another library, or a later version, may be. */
const deaf = (client: AmqpClient): AmqpClient => ({
  connect: (url, { signal: _, ...options } = {}) => client.connect(url, options),
})

describeServers(scale(SERVERS), 'under faults', (url) => {
  const queues: string[] = []
  const freshQueue = () => {
    const queue = fresh()
    queues.push(queue)
    return queue
  }
  afterAll(() => dropQueues(url(), ...queues))

  test('the connection is cut mid-confirm: down, published again, duplicates only', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const direct = brokerAt(url(), { exchange })
    const session = await direct.source({ queue, prefetch: 1000 }).open()
    const broker = brokerAt(proxy.url(url()), { exchange })
    expect(kinds(await broker.publish(some(1), NEVER))).toEqual(['ok'])
    const batch = some(50)
    const cut = proxy.cutAfter(1, 'downstream')
    const outcomes = await broker.publish(batch, NEVER)
    expect(await cut).toBe(true)
    expect(new Set(kinds(outcomes))).toEqual(new Set(['down']))
    expect((outcomes[0] as { error: unknown }).error).toBeInstanceOf(Unavailable)
    await until('it is published again', async () => kinds(await broker.publish(batch, NEVER)).every((k) => k === 'ok'))
    const seen = new Map<string, number>()
    await until('all came', async () => {
      for (const delivery of await session.take({ count: 1000, bytes: 1e8 }, NEVER)) {
        seen.set(delivery.message.id, (seen.get(delivery.message.id) ?? 0) + 1)
        await session.settle([[delivery, DONE]])
      }
      return batch.every(({ id }) => seen.has(id))
    })
    await session.close()
    await broker.close()
    await direct.close()
  })

  test('a consumer is killed with unacked messages, and another gets them, uncharged by us', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const script = bundled(new URL('./counting-child.ts', import.meta.url))
    const victim = runScript({ script, args: [url(), exchange, queue, '10', '600000'] })
    await victim.line('ready')
    const broker = brokerAt(url(), { exchange })
    const source = broker.source({ queue, deliveryLimit: 3 })
    await until('it consumes', async () => (await source.stats().catch(() => undefined))?.consumers === 1)
    const sent = some(5)
    expect(kinds(await broker.publish(sent, NEVER))).toEqual(sent.map(() => 'ok'))
    await until('the victim has them', async () => (await source.stats()).waiting === 0)
    victim.kill()
    await victim.finished
    const session = await source.open()
    const received = await receive(session, 5)
    expect(received.map(({ message: { id } }) => id).sort()).toEqual(sent.map(({ id }) => id).sort())
    for (const { attempts, raw } of received) {
      expect([attempts, raw.properties.headers!['x-delivery-count']]).toEqual([0, 1])
    }
    await session.close()
    await broker.close()
  })

  test('a message that kills its consumers ends in the dead letters by the limit of the server', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const spied = spiedClient()
    const broker = brokerAt(url(), { exchange, client: spied.client })
    const source = broker.source({ queue, deliveryLimit: 3 })
    await (await source.open()).close()
    await broker.publish([message('{"n":"poison"}', { id: 'killer', type: 'order.placed' })], NEVER)
    for (let death = 0; death < 4; death++) {
      const session = await source.open()
      await receive(session, 1)
      const lost = new Promise((resolve) => session.lost.addEventListener('abort', resolve))
      for (const connection of spied.connections.splice(0)) sever(connection)
      await lost
    }
    await until('it is dead', async () => (await source.stats()).dead === 1)
    const [letter] = await source.deadLetters()
    expect(letter).toMatchObject({ id: 'killer', exchange, routingKey: 'order.placed', queue })
    expect(letter!.reason).toContain('delivery_limit')
    expect(await source.rearm('killer')).toBe(1)
    const session = await source.open()
    const [again] = await receive(session, 1)
    expect(again!.message).toMatchObject({ id: 'killer', type: 'order.placed' })
    await session.settle([[again!, DONE]])
    await session.close()
    await broker.close()
  })

  test('a wrong ack closes the channel: the session is lost, a new one gets everything', async () => {
    const queue = freshQueue()
    const spied = spiedClient()
    const broker = brokerAt(url(), { client: spied.client })
    const source = broker.source({ queue })
    const session = await source.open()
    const channel = spied.channels.at(-1)!
    await broker.publish(some(3), NEVER)
    const received = await receive(session, 3)
    const lost = new Promise((resolve) => session.lost.addEventListener('abort', resolve))
    channel.ack({ fields: { deliveryTag: 4711 } })
    await lost
    expect(session.lost.reason).toMatchObject({ code: 'CHANNEL_LOST' })
    expect(String(session.lost.reason)).toContain('unknown delivery tag')
    expect(await session.settle(received.map((delivery) => [delivery, DONE]))).toBe(3)
    await session.close()
    const second = await source.open()
    const again = await receive(second, 3)
    expect(again.map(({ message: { id } }) => id).sort()).toEqual(received.map(({ message: { id } }) => id).sort())
    expect(await second.settle(again.map((delivery) => [delivery, DONE]))).toBe(0)
    await second.close()
    await broker.close()
  })

  test('the exchange is deleted under the publisher: down and clear, or made again where we declare', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const declaring = brokerAt(url(), { exchange })
    const looking = brokerAt(url(), { exchange, declare: false })
    const source = declaring.source({ queue })
    await (await source.open()).close()
    expect(kinds(await looking.publish(some(2), NEVER))).toEqual(['ok', 'ok'])
    expect(kinds(await declaring.publish(some(2), NEVER))).toEqual(['ok', 'ok'])
    await plainly(url(), (channel) => channel.deleteExchange(exchange))
    const [gone] = await looking.publish(some(1), NEVER)
    expect(gone).toMatchObject({ kind: 'down' })
    expect(String((gone as { error: unknown }).error)).toContain(`no exchange '${exchange}'`)
    const [missing] = await looking.publish(some(1), NEVER)
    expect(String((missing as { error: unknown }).error)).toContain('declare: true')
    // The channel ends with the first; the next declares it anew.
    expect((await declaring.publish(some(1), NEVER))[0]!.kind).toBe('down')
    const [unbound] = await declaring.publish(some(1), NEVER)
    expect(unbound).toMatchObject({ kind: 'down', error: { code: 'UNROUTABLE' } })
    await (await source.open()).close()
    expect(kinds(await declaring.publish(some(1), NEVER))).toEqual(['ok'])
    await looking.close()
    await declaring.close()
  })

  test('the queue is deleted while it is consumed: told, made again, and the flow goes on', async () => {
    const queue = freshQueue()
    const broker = brokerAt(url())
    const seen: string[] = []
    const flow = new Flow({
      name: 'goes on',
      from: broker.source({ queue }),
      step: { each: ({ message }) => void seen.push(message.id) },
      outage: { min: 20, max: 100, jitter: 0 },
    })
    const recorder = recordTelemetry(['flow.lost', 'flow.opened'])
    await flow.start()
    await until('it is open', () => recorder.of('flow.opened').length === 1)
    const [before, after] = [message(), message()]
    expect(kinds(await broker.publish([before], NEVER))).toEqual(['ok'])
    await until('it came', () => seen.includes(before.id))
    await plainly(url(), (channel) => channel.deleteQueue(queue))
    await until('it is open again', () => recorder.of('flow.opened').length === 2)
    expect(recorder.of('flow.lost')[0]!.reason).toMatchObject({ code: 'QUEUE_GONE' })
    expect(kinds(await broker.publish([after], NEVER))).toEqual(['ok'])
    await until('it came', () => seen.includes(after.id))
    recorder.stop()
    await flow.stop()
    await broker.close()
  })

  test('a retry queue is deleted: nothing is acked, the next session declares it again', async () => {
    const queue = freshQueue()
    const broker = brokerAt(url())
    const source = broker.source({ queue })
    const session = await source.open()
    await broker.publish(some(1), NEVER)
    const [delivery] = await receive(session, 1)
    await plainly(url(), (channel) => channel.deleteQueue(`${queue}.retry.1000ms`))
    const retry = { kind: 'retry', after: 300, charged: true, error: undefined } as const
    expect(await session.settle([[delivery!, retry]]), 'it is told as stale').toBe(1)
    expect(session.lost.reason).toMatchObject({ code: 'UNROUTABLE' })
    await session.close()
    const second = await source.open()
    const [again] = await receive(second, 1)
    expect(again!.attempts).toBe(0)
    expect(await second.settle([[again!, retry]])).toBe(0)
    expect((await receive(second, 1))[0]!.attempts).toBe(1)
    await second.close()
    await broker.close()
  })

  test('the exchange of the dead letters is deleted: those to be retried are sent once, and the dead when it is made again', async () => {
    const queue = freshQueue()
    const broker = brokerAt(url())
    const source = broker.source({ queue, deadLetter: { exchange: `${queue}.x` } })
    const session = await source.open()
    const [retried, dead] = some(2)
    await broker.publish([retried!, dead!], NEVER)
    const taken = await receive(session, 2)
    await plainly(url(), (channel) => channel.deleteExchange(`${queue}.x`))
    const retry = { kind: 'retry', after: 300, charged: true, error: undefined } as const
    const given = { kind: 'dead', reason: 'no use', error: undefined } as const
    await session.settle(taken.map((one) => [one, one.message.id === dead!.id ? given : retry]))
    expect(session.lost.reason).toMatchObject({ message: expect.stringMatching(/no exchange/) })
    await session.close()
    const second = await source.open()
    const seen = new Map<string, number>()
    for (const delivery of await receive(second, 2)) {
      const { id } = delivery.message
      seen.set(id, delivery.attempts)
      await second.settle([[delivery, id === dead!.id ? given : DONE]])
    }
    expect(Object.fromEntries(seen)).toEqual({ [retried!.id]: 1, [dead!.id]: 0 })
    expect((await source.deadLetters()).map(({ message: { id } = {} }) => id)).toEqual([dead!.id])
    await second.close()
    const left = await plainly(url(), (channel) => channel.checkQueue(queue))
    expect(left.messageCount, 'nothing came twice').toBe(0)
    await broker.close()
  })

  test('unroutable: matched to its message, down or rejected or fine as asked', async () => {
    const queue = freshQueue()
    const broker = brokerAt(url())
    await (await broker.source({ queue, topics: ['order.*'] }).open()).close()
    const batch = ['order.a', 'lost.a', 'order.b', 'lost.a', 'lost.b', 'order.c'].map((type, i) =>
      message('{}', { type, id: i === 3 ? 'twin' : i === 1 ? 'twin' : `u${i}` }),
    )
    expect(kinds(await broker.publish(batch, NEVER))).toEqual(['ok', 'down', 'ok', 'down', 'down', 'ok'])
    const strict = broker.publisher({ unroutable: 'rejected' })
    const outcomes = await strict.publish(batch, NEVER)
    expect(kinds(outcomes)).toEqual(['ok', 'rejected', 'ok', 'rejected', 'rejected', 'ok'])
    expect(outcomes[4]).toMatchObject({ error: { code: 'UNROUTABLE' } })
    expect(String((outcomes[4] as { error: unknown }).error)).toContain('lost.b')
    const easy = broker.publisher({ unroutable: 'ok' })
    expect(kinds(await easy.publish(batch, NEVER))).toEqual(batch.map(() => 'ok'))
    await broker.close()
  })

  test('a full queue refuses: down, and a relay waits until there is room, without a charge', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const broker = brokerAt(url(), { exchange })
    const source = broker.source({ queue, maxLength: 5 })
    await (await source.open()).close()
    // The server refuses a little late: it looks once it has counted.
    const outcomes: Outcome[] = []
    await until('it refuses', async () => {
      outcomes.push(...(await broker.publish(some(1), NEVER)))
      return outcomes.at(-1)!.kind !== 'ok'
    })
    expect(outcomes.at(-1)).toMatchObject({ kind: 'down', error: { code: 'REFUSED' } })
    const arrived = outcomes.length - 1
    expect((await source.stats()).waiting).toBe(arrived)
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: broker, ...QUICK })
    const sent = Array.from({ length: 20 }, (_, n) => message('{}', { key: `k${n}` }))
    await db.withTransaction(async (tx) => {
      for (const one of sent) await db.outbox.enqueue(tx, one)
    })
    await relay.start()
    await until('it says why it waits', () => /a queue is full/.test(relay.status().reason ?? ''))
    const session = await source.open()
    const left = new Set(sent.map(({ id }) => id))
    await until('all have come', async () => {
      const taken = await session.take({ count: 10, bytes: 1e6 }, NEVER)
      for (const delivery of taken) left.delete(delivery.message.id)
      await session.settle(taken.map((delivery) => [delivery, DONE]))
      return left.size === 0
    })
    await until('they are published', async () => (await db.outbox.admin.stats()).states.published.count === 20)
    await session.close()
    await relay.stop()
    await broker.close()
  })

  test('a crash between the copy and the ack leaves two, never none', async () => {
    const queue = freshQueue()
    const spied = spiedClient()
    const broker = brokerAt(url(), { client: spied.client })
    const source = broker.source({ queue })
    const session = await source.open()
    const channel = spied.channels.at(-1)!
    await broker.publish(some(1), NEVER)
    const [delivery] = await receive(session, 1)
    channel.ack = () => {
      throw new Error('killed before the ack')
    }
    const retry = { kind: 'retry', after: 0, charged: true, error: undefined } as const
    await session.settle([[delivery!, retry]])
    await session.close()
    const second = await source.open()
    const both = await receive(second, 2)
    expect(both.map(({ attempts }) => attempts).sort()).toEqual([0, 1])
    expect(new Set(both.map(({ message: { id } }) => id))).toEqual(new Set([delivery!.message.id]))
    await second.settle(both.map((one) => [one, DONE]))
    await second.close()
    await broker.close()
  })

  test('reconnects after 1 s doubling to 30 s, with jitter, and everybody shares the pause', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    await proxy.refuse()
    const attempts: number[] = []
    const clock = { ...systemClock, sleeps: [] as number[] }
    // What an attempt takes on this machine is no part of the pause after it.
    let skipped = 0
    clock.sleep = async (ms, signal) => {
      // How long an attempt may take is no pause.
      if (ms === 11_000) return await systemClock.sleep(ms, signal)
      clock.sleeps.push(ms)
      skipped += ms
    }
    clock.monotonic = () => skipped
    const counting = {
      connect: (...args: Parameters<typeof client.connect>) => {
        attempts.push(clock.monotonic())
        return client.connect(...args)
      },
    }
    const broker = brokerAt(proxy.url(url()), { client: counting, clock, reconnect: {} })
    for (let i = 0; i < 8; i++) {
      const both = [broker.publish(some(1), NEVER), broker.publish(some(1), NEVER)]
      for (const outcomes of await Promise.all(both)) expect(outcomes[0]!.kind).toBe('down')
    }
    expect(attempts).toHaveLength(8)
    const pauses = clock.sleeps
    expect(pauses).toHaveLength(7)
    const expected = [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]
    pauses.forEach((pause, i) => {
      expect(pause).toBeGreaterThanOrEqual(expected[i]!)
      expect(pause).toBeLessThanOrEqual(expected[i]! + 1000)
    })
    await broker.close()
  })

  test.each<[string, boolean]>([
    ['a server that accepts and says nothing is given up, for publishers and consumers', true],
    ['so it is by a client that does not hand our signal to its socket', false],
  ])('%s', async (_, heard) => {
    const spied = spiedClient()
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const broker = brokerAt(proxy.url(url()), {
      exchange,
      timeout: 2500,
      reconnect: SOON,
      client: heard ? spied.client : deaf(spied.client),
    })
    const source = broker.source({ queue })
    const session = await source.open()
    const publisher = broker.publisher({ confirm: 2500 })
    expect(kinds(await publisher.publish(some(1), NEVER))).toEqual(['ok'])
    proxy.blackHole()
    const began = performance.now()
    expect(kinds(await publisher.publish(some(1), NEVER))).toEqual(['down'])
    await expect(source.stats()).rejects.toMatchObject({ code: 'UNAVAILABLE' })
    await until('the session is lost', () => session.lost.aborted)
    // Not only forgotten: the sockets are gone.
    expect(spied.connections.slice(0, 2).map((one) => socketOf(one).destroyed)).toEqual([heard, heard])
    expect(kinds(await publisher.publish(some(1), NEVER))).toEqual(['down'])
    expect(performance.now() - began).toBeLessThan(30_000)
    await session.close()
    await proxy.restore()
    proxy.cut()
    await until('it goes on', async () => kinds(await publisher.publish(some(1), NEVER))[0] === 'ok')
    await broker.close()
  })
})
