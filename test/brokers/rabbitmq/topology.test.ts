import { afterAll, expect, test } from 'vitest'
import { differenceIn } from '../../../src/brokers/rabbitmq/inspection.ts'
import type { Outcome } from '../../../src/flow/index.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { brokerAt, dropQueues, fresh, message, NEVER, plainly, receive } from './support.ts'

const kinds = (outcomes: readonly Outcome[]) => outcomes.map(({ kind }) => kind)

describeWith(['rabbitmq'], 'rabbitmq: what stands around a queue', () => {
  const url = () => service('rabbitmq').url
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
