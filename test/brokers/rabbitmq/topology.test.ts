import { afterAll, expect, test } from 'vitest'
import type { AmqpClient } from '../../../src/brokers/rabbitmq/index.ts'
import { differenceIn } from '../../../src/brokers/rabbitmq/inspection.ts'
import type { RawMessage } from '../../../src/core/index.ts'
import { Flow, type Outcome } from '../../../src/flow/index.ts'
import { FakeClock, recordTelemetry } from '../../../src/testing/index.ts'
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
  until,
} from './support.ts'

/** Looks again soon. */
const QUICK = { outage: { min: 20, max: 100 }, poll: 20 } as const

const kinds = (outcomes: readonly Outcome[]) => outcomes.map(({ kind }) => kind)

describeServers(scale(SERVERS), 'what stands around a queue', (url) => {
  const queues: string[] = []
  const freshQueue = () => {
    const queue = fresh()
    queues.push(queue)
    return queue
  }
  afterAll(() => dropQueues(url(), ...queues))

  test('an exchange that is deleted while it is used comes back with its bindings', async () => {
    const exchange = fresh('x')
    const broker = brokerAt(url(), { exchange })
    const session = await broker.source({ queue: freshQueue(), topics: ['order.*'] }).open()
    const sent = message('{}', { type: 'order.placed' })
    expect(kinds(await broker.publish([message('{}', { type: 'order.placed' })], NEVER))).toEqual(['ok'])
    await receive(session, 1)
    await plainly(url(), (channel) => channel.deleteExchange(exchange))
    expect(kinds(await broker.publish([sent], NEVER)), 'the channel ends with it').toEqual(['down'])
    expect(kinds(await broker.publish([sent], NEVER))).toEqual(['ok'])
    expect((await receive(session, 1))[0]!.message.id).toBe(sent.id)
    await session.close()
    await broker.close()
  })

  test('a consumer elsewhere binds its queue again by itself, and what nobody takes meanwhile is charged to nobody', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const [publisher, consumer] = [brokerAt(url(), { exchange }), brokerAt(url(), { exchange })]
    const session = await consumer.source({ queue }).open()
    expect(kinds(await publisher.publish([message()], NEVER))).toEqual(['ok'])
    await receive(session, 1)
    await plainly(url(), async (channel) => {
      await channel.unbindQueue(queue, exchange, '#')
    })
    const [lost] = await publisher.publish([message()], NEVER)
    expect(lost).toMatchObject({ kind: 'down', error: { code: 'UNROUTABLE' } })
    expect(session.extendEvery).toBe(30_000)
    await session.extend()
    expect(kinds(await publisher.publish([message()], NEVER)), 'it was declared a moment ago').toEqual(['down'])
    await session.extend()
    expect(kinds(await publisher.publish([message()], NEVER))).toEqual(['ok'])
    await session.close()
    await publisher.close()
    await consumer.close()
  })

  test('what a message is that no queue takes is said for the broker, a publisher, or a message', async () => {
    const lost = [message('{}', { type: 'lost.a' }), message('{}', { type: 'lost.b' })]
    const broker = brokerAt(url(), { unroutable: 'ok' })
    expect(kinds(await broker.publish(lost, NEVER))).toEqual(['ok', 'ok'])
    const strict = broker.publisher({ unroutable: ({ type }) => (type === 'lost.a' ? 'rejected' : 'failed') })
    const outcomes = await strict.publish(lost, NEVER)
    expect(kinds(outcomes)).toEqual(['rejected', 'failed'])
    expect(String((outcomes[0] as { error: unknown }).error)).toContain('option unroutable')
    await broker.close()
  })

  test('made by others: what can lose or stall messages is told once', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    await plainly(url(), async (channel) => {
      await channel.assertExchange(exchange, 'topic')
      await channel.assertExchange(`${exchange}.dead`, 'direct')
      await channel.assertQueue(`${queue}.dead`)
      await channel.assertQueue(queue, { durable: false })
      for (const ms of [1000, 10_000, 60_000]) await channel.assertQueue(`${queue}.retry.${ms}ms`)
      const back = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue }
      await channel.assertQueue(`${queue}.retry.600000ms`, { arguments: back })
      await channel.bindQueue(queue, exchange, '#')
    })
    const recorder = recordTelemetry(['warning'])
    const broker = brokerAt(url(), { exchange, declare: false })
    const source = broker.source({ queue })
    await (await source.open()).close()
    const told = recorder.of('warning').map(({ message: text }) => text)
    const about = (text: string) => told.filter((one) => one.includes(text))
    expect(about('a classic queue, which counts no deliveries')).toHaveLength(1)
    expect(about('not durable')).toHaveLength(1)
    expect(about('what the server gives up is dropped')).toHaveLength(1)
    const retries = about('retries do not come back from it').map((text) => /retry\.(\d+)ms/.exec(text)![1])
    expect(retries).toEqual(['1000', '10000', '60000'])
    await (await source.open()).close()
    expect(recorder.of('warning')).toHaveLength(told.length)
    recorder.stop()
    await broker.close()
  })

  test('made by others with limits that remove messages: each is told once, of the dead letters too', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const quorum = { 'x-queue-type': 'quorum' }
    const toDead = { 'x-dead-letter-exchange': `${exchange}.dead`, 'x-dead-letter-routing-key': queue }
    const back = { 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': queue }
    await plainly(url(), async (channel) => {
      await channel.assertExchange(exchange, 'topic')
      await channel.assertExchange(`${exchange}.dead`, 'direct')
      const limited = { ...quorum, 'x-delivery-limit': 5, ...toDead, 'x-max-length': 100 }
      await channel.assertQueue(queue, { arguments: limited })
      await channel.assertQueue(`${queue}.dead`, { arguments: { ...quorum, 'x-max-length-bytes': 9999 } })
      await channel.assertQueue(`${queue}.retry.1000ms`, { arguments: { ...back, 'x-expires': 600_000 } })
      for (const ms of [10_000, 60_000, 600_000])
        await channel.assertQueue(`${queue}.retry.${ms}ms`, { arguments: back })
      await channel.bindQueue(queue, exchange, '#')
      await channel.bindQueue(`${queue}.dead`, `${exchange}.dead`, queue)
    })
    const other = freshQueue()
    await plainly(url(), async (channel) => {
      for (const name of [other, `${other}.dead`])
        await channel.assertQueue(name, { durable: name === other, arguments: { ...toDead, 'x-message-ttl': 5000 } })
      for (const ms of [1000, 10_000, 60_000, 600_000])
        await channel.assertQueue(`${other}.retry.${ms}ms`, {
          arguments: { ...back, 'x-dead-letter-routing-key': other, 'x-max-length': 10 },
        })
    })
    const recorder = recordTelemetry(['warning'])
    const broker = brokerAt(url(), { exchange, declare: false })
    for (const name of [queue, other]) await (await broker.source({ queue: name }).open()).close()
    const told = recorder.of('warning').map(({ message: text }) => text.replace(/;.*/, ''))
    expect(told).toEqual([
      `queue "${queue}" drops its oldest messages when it is full, handled or not`,
      `queue "${queue}.retry.1000ms" has x-expires: it is deleted, with all that is in it, when nobody has read it for 600000 ms`,
      `queue "${queue}.dead" has no x-delivery-limit: RabbitMQ 4 drops a dead letter that was looked at 20 times`,
      `queue "${queue}.dead" drops its oldest messages when it is full, looked at or not`,
      expect.stringMatching(/is a classic queue/),
      `queue "${other}" has x-message-ttl: messages are removed after 5000 ms, handled or not`,
      `queue "${other}.dead" is not durable: dead letters are lost when the server ends`,
      `queue "${other}.dead" has x-message-ttl: messages are removed after 5000 ms, looked at or not`,
    ])
    recorder.stop()
    await broker.close()
  })

  test('made by others as we would have made it: nothing is told', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    const declaring = brokerAt(url(), { exchange })
    await (await declaring.source({ queue, maxLength: 50 }).open()).close()
    const recorder = recordTelemetry(['warning'])
    const looking = brokerAt(url(), { exchange, declare: false })
    // Another limit than ours is theirs to choose.
    await (await looking.source({ queue, deliveryLimit: 7 }).open()).close()
    expect(recorder.of('warning')).toEqual([])
    recorder.stop()
    await looking.close()
    await declaring.close()
  })

  test('made by others with a lower delivery limit: what is only given back does not reach it', async () => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    await plainly(url(), async (channel) => {
      await channel.assertExchange(exchange, 'topic')
      await channel.assertExchange(`${exchange}.dead`, 'direct')
      for (const name of ['.dead', ...[1000, 10_000, 60_000, 600_000].map((ms) => `.retry.${ms}ms`)])
        await channel.assertQueue(queue + name)
      const dead = { 'x-dead-letter-exchange': `${exchange}.dead`, 'x-dead-letter-routing-key': queue }
      await channel.assertQueue(queue, { arguments: { 'x-queue-type': 'quorum', 'x-delivery-limit': 3, ...dead } })
      await channel.bindQueue(queue, exchange, '#')
      await channel.bindQueue(`${queue}.dead`, `${exchange}.dead`, queue)
    })
    const broker = brokerAt(url(), { exchange, declare: false })
    const source = broker.source({ queue })
    await broker.publish([message('{}', { id: 'a' })], NEVER)
    // As in deploys: each consumer is stopped with the message in hand.
    for (let deploy = 0; deploy < 6; deploy++) {
      const session = await source.open()
      expect(await receive(session, 1)).toMatchObject([{ message: { id: 'a' }, attempts: 0 }])
      await session.close()
    }
    expect(await source.stats()).toMatchObject({ dead: 0 })
    await broker.close()
  })

  /** As somebody else makes them: nothing is bound to the exchange of the dead letters. */
  async function madeWithoutBinding(exchange: string, queue: string, letters = true): Promise<void> {
    await plainly(url(), async (channel) => {
      await channel.assertExchange(exchange, 'topic')
      await channel.assertExchange(`${exchange}.dead`, 'direct')
      if (letters) await channel.assertQueue(`${queue}.dead`)
      for (const ms of [1000, 10_000, 60_000, 600_000]) await channel.assertQueue(`${queue}.retry.${ms}ms`)
      const dead = { 'x-dead-letter-exchange': `${exchange}.dead`, 'x-dead-letter-routing-key': queue }
      await channel.assertQueue(queue, { arguments: { 'x-queue-type': 'quorum', 'x-delivery-limit': 20, ...dead } })
      await channel.bindQueue(queue, exchange, '#')
    })
  }

  test.each<[string, boolean]>([
    ['nobody can read', true],
    ['its handler has failed', false],
  ])(
    'made by others without a binding for dead letters: a message that %s stays unacked, and the others are handled once',
    async (_, unreadable) => {
      const [exchange, queue] = [fresh('x'), freshQueue()]
      await madeWithoutBinding(exchange, queue)
      await plainly(url(), async (channel) => {
        channel.publish(exchange, 'bad', Buffer.from('{}'), unreadable ? {} : { messageId: 'bad' })
        await channel.waitForConfirms()
      })
      const recorder = recordTelemetry(['warning', 'flow.lost', 'message.dead'])
      const broker = brokerAt(url(), { exchange, declare: false })
      const source = broker.source({ queue })
      const good = Array.from({ length: 40 }, () => message())
      expect(kinds(await broker.publish(good, NEVER))).toEqual(good.map(() => 'ok'))
      const seen: string[] = []
      const each = ({ message: { id } }: { message: RawMessage }) => {
        if (id === 'bad') throw new Error('always')
        seen.push(id)
      }
      const flow = new Flow({ name: fresh(), from: source, step: { each }, ...QUICK, retry: { attempts: 1 } })
      await flow.start()
      await until('all others are handled', () => seen.length >= good.length)
      await until('it says what is wrong', () => /no queue takes/.test(flow.status().reason ?? ''))
      expect(seen.sort()).toEqual(good.map(({ id }) => id).sort())
      expect(recorder.of('flow.lost')).toEqual([])
      expect(recorder.of('message.dead')).toHaveLength(1)
      const told = recorder.of('warning').filter(({ message: text }) => text.includes('nothing is bound to exchange'))
      expect(told.map(({ message: text }) => text)).toEqual([expect.stringContaining(`bind queue "${queue}.dead"`)])
      await plainly(url(), (channel) => channel.bindQueue(`${queue}.dead`, `${exchange}.dead`, queue))
      await until('it is a dead letter', async () => (await source.stats()).dead === 1)
      await until('it goes on', () => flow.status().state === 'running')
      await flow.stop()
      recorder.stop()
      expect(await source.stats()).toMatchObject({ waiting: 0, dead: 1 })
      await broker.close()
    },
  )

  /** The same with the binding, and with room for one dead letter, which is there. */
  async function madeFull(exchange: string, queue: string): Promise<void> {
    await plainly(url(), (channel) =>
      channel.assertQueue(`${queue}.dead`, { arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' } }),
    )
    await plainly(url(), async (channel) => {
      channel.sendToQueue(`${queue}.dead`, Buffer.from('{}'))
      await channel.waitForConfirms()
    })
    await madeWithoutBinding(exchange, queue, false)
    await plainly(url(), (channel) => channel.bindQueue(`${queue}.dead`, `${exchange}.dead`, queue))
  }

  test.each([
    ['nothing is bound for', madeWithoutBinding],
    ['a full queue refuses', madeFull],
  ])('a dead letter that %s is sent again once in a second, however much is taken meanwhile', async (_, made) => {
    const [exchange, queue] = [fresh('x'), freshQueue()]
    await made(exchange, queue)
    let sent = 0
    const counting: AmqpClient = {
      async connect(...given) {
        const connection = await client.connect(...given)
        const make = connection.createConfirmChannel.bind(connection)
        connection.createConfirmChannel = async () => {
          const channel = await make()
          const publish = channel.publish.bind(channel)
          channel.publish = (to, ...rest) => {
            if (to === `${exchange}.dead`) sent++
            return publish(to, ...rest)
          }
          return channel
        }
        return connection
      },
    }
    const clock = new FakeClock()
    const broker = brokerAt(url(), { exchange, declare: false, clock, client: counting })
    const session = await broker.source({ queue }).open(NEVER)
    const take = () => session.take({ count: 1, bytes: 1e6 }, NEVER)
    const refused = () =>
      take().then(
        () => false,
        () => true,
      )
    await plainly(url(), async (channel) => {
      channel.publish(exchange, 'bad', Buffer.from('{}'))
      await channel.waitForConfirms()
    })
    await until('it is no dead letter', refused)
    expect(sent).toBe(1)
    const good = Array.from({ length: 10 }, () => message())
    expect(kinds(await broker.publish(good, NEVER))).toEqual(good.map(() => 'ok'))
    let seen = 0
    while (seen < good.length) seen += (await take()).length
    // The pause of a flow whose take has failed would hold up what comes next.
    const idle = take()
    expect(kinds(await broker.publish([message()], NEVER))).toEqual(['ok'])
    expect(await idle).toHaveLength(1)
    expect(sent).toBe(1)
    await clock.advance(1000)
    expect(await refused(), 'it is told again').toBe(true)
    expect(sent).toBe(2)
    const waiting = take()
    expect(kinds(await broker.publish([message()], NEVER))).toEqual(['ok'])
    expect(await waiting).toHaveLength(1)
    expect(sent).toBe(2)
    await session.close()
    await broker.close()
  })

  test('what the server says of an argument is read in each of its forms', () => {
    const said = (rest: string) =>
      differenceIn(new Error(`406 with message "PRECONDITION_FAILED - inequivalent ${rest}"`))
    const queue = "for queue 'q' in vhost '/': received"
    expect(said(`arg 'x-delivery-limit' ${queue} none but current is the value '20' of type 'signedint'`)).toEqual({
      name: 'x-delivery-limit',
      value: 20,
    })
    expect(said(`arg 'x-overflow' ${queue} the value 'a' of type 'longstr' but current is none`)).toEqual({
      name: 'x-overflow',
      value: undefined,
    })
    expect(said(`arg 'durable' ${queue} 'true' but current is 'false'`)).toEqual({ name: 'durable', value: 'false' })
    expect(differenceIn(new Error('ACCESS_REFUSED'))).toBeUndefined()
  })
})
