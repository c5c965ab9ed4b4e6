import type kafkajs from 'kafkajs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import * as control from '../../../scripts/services/server.ts'
import type { Server } from '../../../scripts/services/types.ts'
import { type KafkaBroker, kafka } from '../../../src/brokers/kafka/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { type FaultProxy, recordTelemetry } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { kafkaBehindProxy } from './private.ts'
import { bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

describeWith(['kafka'], 'kafka when server and network fail', () => {
  let [server, proxy, url]: [Server?, FaultProxy?, string?] = []
  let broker: KafkaBroker

  beforeAll(async () => {
    ;({ server, proxy, url } = await kafkaBehindProxy())
    broker = onServer(url, { timeout: 2000 })
  })
  afterAll(() => broker?.close())

  /** The ids in a topic, as they stand there. */
  async function idsIn(topic: string): Promise<string[]> {
    const ids: string[] = []
    const outside = bare(url!)
    const admin = outside.admin()
    await admin.connect()
    const ends = await admin.fetchTopicOffsets(topic)
    await admin.disconnect()
    const consumer = outside.consumer({ groupId: fresh('look'), maxWaitTimeInMs: 50 })
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await consumer.run({
      eachMessage: async ({ message: { headers } }) => void ids.push(String(headers!['ce_id'])),
    })
    const all = ends.reduce((sum, { high }) => sum + Number(high), 0)
    await until('all that is there has come', () => ids.length >= all)
    await consumer.disconnect()
    return ids
  }

  test('the connection is cut before the answer: the same request is repeated, and the server has it once', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: { partitions: 1, replication: 1 } })
    const first = message()
    expect((await publisher.publish([first], NEVER))[0]!.kind).toBe('ok')
    const cut = proxy!.cutAfter(1, 'downstream')
    const batch = [message(), message(), message()]
    const outcomes = await publisher.publish(batch, NEVER)
    expect(await cut).toBe(true)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'ok', 'ok'])
    expect(await idsIn(topic)).toEqual([first, ...batch].map(({ id }) => id))
    await publisher.close!()
  })

  test('answers are lost for good: down; others that follow are not taken for the repetition of what arrived', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: { partitions: 1, replication: 1 } })
    await publisher.publish([message('{}', { key: 'k' })], NEVER)
    proxy!.halfOpen('downstream')
    const unknown = [1, 2].map(() => message('{}', { key: 'k' }))
    const began = performance.now()
    expect((await publisher.publish(unknown, NEVER)).map(({ kind }) => kind)).toEqual(['down', 'down'])
    expect(performance.now() - began).toBeLessThan(10_000)
    await proxy!.restore()
    const others = [1, 2].map(() => message('{}', { key: 'k' }))
    await until('it goes on', async () => (await publisher.publish(others, NEVER)).every(({ kind }) => kind === 'ok'))
    const ids = await idsIn(topic)
    for (const { id } of others) expect(ids).toContain(id)
    await publisher.close!()
  })

  test.each<[string, (inner: kafkajs.Admin, given: Parameters<kafkajs.Admin['createTopics']>[0]) => Promise<boolean>]>([
    [
      'the connection is cut',
      async (inner, given) => {
        await proxy!.refuse()
        return await inner.createTopics(given).finally(() => proxy!.restore())
      },
    ],
    [
      'the controller moves',
      async () => {
        throw Object.assign(new Error('errors'), {
          errors: [Object.assign(new Error('moved'), { type: 'NOT_CONTROLLER' })],
        })
      },
    ],
  ])('%s while a topic is made: an outage, which no start ends with, and no refusal', async (_, createTopics) => {
    const client = bare(url!)
    const admin = client.admin.bind(client)
    client.admin = (config) => {
      const inner = admin(config)
      return { ...inner, createTopics: (given) => createTopics(inner, given) }
    }
    const mine = kafka({ client })
    const publisher = mine.publisher({ topic: fresh(), create: { partitions: 1, replication: 1 } })
    await expect(publisher.start!()).rejects.toMatchObject({ code: 'UNAVAILABLE', message: /could not be created/ })
    await mine.close()
  })

  test('the connection of a consumer is cut: nothing is lost, and it was no crash', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: QUICK.create })
    const source = broker.source({ topic, group: fresh('g'), ...QUICK, session: '2s' })
    const sent = Array.from({ length: 20 }, () => message())
    await publisher.publish(sent, NEVER)
    const session = await source.open(NEVER)
    const held = await receive(session, 20)
    await proxy!.refuse()
    await until('it is lost', () => session.lost.aborted, 30_000)
    await session.close()
    expect(await session.settle(held.map((delivery) => [delivery, { kind: 'done' }]))).toBe(20)
    await proxy!.restore()
    const next = await source.open(NEVER)
    expect(next.afterCrash).toBe(false)
    const again = await receive(next, 20)
    expect(new Set(again.map(({ message: { id } }) => id))).toEqual(new Set(sent.map(({ id }) => id)))
    expect(await next.settle(again.map((delivery) => [delivery, { kind: 'done' }]))).toBe(0)
    await next.close()
    await publisher.close!()
  })

  test('killed and started again under load: nothing acknowledged is lost, first deliveries keep their order', async () => {
    const topic = fresh()
    const publisher = broker.publisher({ topic, create: QUICK.create })
    await publisher.start!()
    const seen = new Set<string>()
    const firsts = new Map<string, number[]>()
    const each = ({ message: { id, key } }: { message: { id: string; key?: string | undefined } }) => {
      if (seen.has(id)) return
      seen.add(id)
      firsts.set(key!, [...(firsts.get(key!) ?? []), Number(id.split('-')[1])])
    }
    const from = broker.source({ topic, group: fresh('g'), ...QUICK, session: '3s' })
    const flow = new Flow({ name: fresh('restart'), from, step: { each }, outage: { min: 20, max: 200 } })
    const accepted = new Set<string>()
    const telemetry = recordTelemetry(['message.dead'])
    await flow.start()
    let over = false
    const load = (async () => {
      // As a relay does: a batch that did not arrive is published again, before any that follow.
      for (let n = 0; !over; ) {
        const batch = Array.from({ length: 20 }, () => message('{}', { id: `n-${++n}`, key: `k${n % 5}` }))
        for (let arrived = false; !arrived && !over; ) {
          const outcomes = await publisher.publish(batch, NEVER).catch(() => [])
          arrived = outcomes.length > 0 && outcomes.every(({ kind }) => kind === 'ok')
          for (const [i, { kind }] of outcomes.entries()) if (kind === 'ok') accepted.add(batch[i]!.id)
          await systemClock.sleep(arrived ? 2 : 50)
        }
      }
    })()
    for (let restart = 1; restart <= scale({ test: 2, full: 5, torture: 20 }); restart++) {
      const before = accepted.size
      await until('messages flow', () => accepted.size > before + 200)
      await control.stop(server!, 'kill')
      await control.start(server!)
    }
    const before = accepted.size
    await until('messages flow again', () => accepted.size > before + 200)
    over = true
    await load
    await until('all of them came', () => [...accepted].every((id) => seen.has(id)))
    await flow.stop()
    expect(telemetry.of('message.dead')).toEqual([])
    telemetry.stop()
    for (const list of firsts.values()) expect(list).toEqual([...list].sort((a, b) => a - b))
    await publisher.close!()
  })
})
