import kafkajs from 'kafkajs'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { KafkaBroker } from '../../../src/brokers/kafka/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { DONE, Flow, RELEASE } from '../../../src/flow/index.ts'
import { recordTelemetry, runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { bare, fresh, message, NEVER, onServer, QUICK, receive, until } from './support.ts'

const retry = { backoff: { min: 20, max: 50 } }
const outage = { min: 20, max: 100 }

describeWith(['kafka'], 'kafka under faults', () => {
  let broker: KafkaBroker
  const url = () => service('kafka').url
  const script = (...args: string[]) =>
    runScript({ script: bundled(new URL('./consumer-script.ts', import.meta.url)), args })
  const lagOf = async (topic: string, group: string) =>
    (await broker.source({ topic, group }).stats()).reduce((sum, { lag }) => sum + lag, 0)

  /** A topic, a group with its dead letters, and a publisher. */
  async function prepared(partitions: number = QUICK.create.partitions) {
    const [topic, group] = [fresh(), fresh('g')]
    const create = { partitions, replication: 1 }
    const publisher = broker.publisher({ topic, create })
    await publisher.start!()
    await (await broker.source({ topic, group, ...QUICK, create }).open(NEVER)).close()
    return { topic, group, publisher }
  }

  beforeAll(() => {
    broker = onServer(url())
  })
  afterAll(() => broker.close())

  test('a consumer is killed with unsettled records: another gets them, and knows of the crash', async () => {
    const { topic, group, publisher } = await prepared()
    const victim = script(url(), topic, group, '60000')
    await victim.line('ready')
    const sent = [message(), message(), message()]
    await publisher.publish(sent, NEVER)
    await victim.line('begin')
    victim.kill()
    await victim.finished
    const session = await broker.source({ topic, group, ...QUICK }).open(NEVER)
    expect(session.afterCrash).toBe(true)
    const got = await receive(session, 3)
    expect(got.map(({ message: { id } }) => id).sort()).toEqual(sent.map(({ id }) => id).sort())
    await session.settle(got.map((delivery) => [delivery, DONE]))
    await session.close()
    expect(await lagOf(topic, group)).toBe(0)
    const next = await broker.source({ topic, group, ...QUICK }).open(NEVER)
    expect(next.afterCrash, 'whoever closes says goodbye').toBe(false)
    await next.close()
    await publisher.close!()
  })

  test('one that said goodbye and comes again knows of the crash of whom it left its partitions to', async () => {
    const { topic, group, publisher } = await prepared()
    const source = broker.source({ topic, group, ...QUICK })
    await (await source.open(NEVER)).close()
    const victim = script(url(), topic, group, '60000')
    await victim.line('ready')
    await publisher.publish([message()], NEVER)
    await victim.line('begin')
    victim.kill()
    await victim.finished
    const again = await source.open(NEVER)
    expect(again.afterCrash).toBe(true)
    await again.close()
    await publisher.close!()
  })

  test('a process that slept past its session settles nothing, and handles nothing old when it wakes', async () => {
    const { topic, group, publisher } = await prepared(1)
    const zombie = script(url(), topic, group, '300')
    await zombie.line('ready')
    const sent = Array.from({ length: 10 }, () => message('{}', { key: 'k' }))
    await publisher.publish(sent, NEVER)
    await zombie.line('begin')
    zombie.pause()
    const session = await broker.source({ topic, group, ...QUICK }).open(NEVER)
    const got = await receive(session, 10)
    // Unsettled here, and uncommitted, when the zombie wakes up with an older claim to it.
    zombie.resume()
    await until('the zombie has noticed', () => session.lost.aborted)
    expect(await lagOf(topic, group)).toBe(10)
    await session.settle(got.map((delivery) => [delivery, DONE]))
    expect(await lagOf(topic, group), 'and neither does a session that was lost to it').toBeGreaterThan(0)
    const begun = zombie.stdout.split('\n').filter((line) => line.startsWith('begin')).length
    expect(begun, 'what waited in its hand did not go out').toBeLessThanOrEqual(3)
    zombie.kill()
    await zombie.finished
    await session.close()
    await publisher.close!()
  })

  test('handlers that take longer than the session keep it, with more records than fit', async () => {
    const { topic, group, publisher } = await prepared(1)
    const sent = Array.from({ length: 60 }, () => message())
    await publisher.publish(sent, NEVER)
    const telemetry = recordTelemetry(['flow.lost'])
    let [runs, resumed] = [0, false]
    const from = broker.source({ topic, group, ...QUICK, session: '3s', ahead: 20 })
    const each = async () => {
      runs++
      if (!resumed) await systemClock.sleep(7000)
      resumed = true
    }
    const flow = new Flow({
      name: fresh('slow'),
      from,
      step: { each },
      concurrency: 5,
      buffer: { count: 5 },
    })
    await flow.start()
    await until('all are done', async () => (await lagOf(topic, group)) === 0)
    await flow.stop()
    expect(runs).toBe(60)
    expect(telemetry.of('flow.lost')).toEqual([])
    telemetry.stop()
    await publisher.close!()
  })

  test('only what is done without a gap is committed, and reading does not run away from a gap', async () => {
    const { topic, group, publisher } = await prepared(1)
    const ids = Array.from({ length: 50 }, (_, i) => `n${i}`)
    await publisher.publish(
      ids.map((id) => message('{}', { id, key: id })),
      NEVER,
    )
    const source = broker.source({ topic, group, ...QUICK, ahead: 20 })
    const first = await source.open(NEVER)
    const [head, ...others] = await receive(first, 20)
    await first.settle(others.map((delivery) => [delivery, DONE]))
    expect((await source.stats())[0]).toMatchObject({ committed: 0, lag: 50 })
    await first.wait(200, NEVER)
    const more = await first.take({ count: 100, bytes: 1e6 }, NEVER)
    // One batch may have come with what was allowed.
    await first.settle([...more.map((delivery) => [delivery, RELEASE] as const), [head!, DONE]])
    expect((await source.stats())[0]).toMatchObject({ committed: 20 })
    const rest = await receive(first, 30)
    expect(rest.map(({ message: { id } }) => id)).toEqual(ids.slice(20))
    await first.settle([[rest[0]!, DONE]])
    await first.close()
    const second = await source.open(NEVER)
    expect((await receive(second, 29)).map(({ message: { id } }) => id)).toEqual(ids.slice(21))
    await second.close()
    await publisher.close!()
  })

  test('what the client has fetched when it joins is used: nothing is fetched twice', async () => {
    const fetched: number[] = []
    class Watched extends kafkajs.Kafka {
      override consumer(config: kafkajs.ConsumerConfig): kafkajs.Consumer {
        const consumer = super.consumer(config)
        consumer.on('consumer.start_batch_process', ({ payload }) => void fetched.push(payload.batchSize))
        return consumer
      }
    }
    const topic = fresh()
    const messages = Array.from({ length: 50 }, () => message())
    const watched = onServer(url(), { client: Watched })
    const publisher = watched.publisher({ topic, create: QUICK.create })
    await publisher.publish(messages, NEVER)
    const source = watched.source({ topic, group: fresh(), ...QUICK })
    for (const more of [[], [message()]]) {
      if (more.length > 0) await publisher.publish(more, NEVER)
      fetched.length = 0
      const wanted = more.length > 0 ? more : messages
      const session = (await source.open(NEVER))!
      const taken = await receive(session, wanted.length)
      await session.settle(taken.map((delivery) => [delivery, DONE]))
      await session.close()
      expect(taken.map(({ message: { id } }) => id).sort()).toEqual(wanted.map(({ id }) => id).sort())
      expect(fetched.reduce((sum, count) => sum + count, 0)).toBe(wanted.length)
    }
    await watched.close()
  })

  test('consumers come and go under load: nothing is lost, first deliveries keep the order of their key', async () => {
    const { topic, group, publisher } = await prepared(6)
    const size = scale({ test: 3000, full: 20_000, torture: 200_000 })
    const rounds = scale({ test: 4, full: 12, torture: 60 })
    const firsts = new Map<string, number[]>()
    const seen = new Set<string>()
    const each = async ({ message: { id, key } }: { message: { id: string; key?: string | undefined } }) => {
      await systemClock.sleep(1)
      if (seen.has(id)) return
      seen.add(id)
      const list = firsts.get(key!) ?? []
      firsts.set(key!, [...list, Number(id.split('-')[1])])
    }
    const begin = async () => {
      const from = broker.source({ topic, group, ...QUICK })
      const flow = new Flow({ name: fresh('member'), from, step: { each }, retry, outage, grace: 500 })
      await flow.start()
      return flow
    }
    const flows = [await begin()]
    const load = (async () => {
      for (let n = 0; n < size; ) {
        const batch = Array.from({ length: 50 }, () => {
          n++
          return message('{}', { id: `n-${n}`, key: `k${n % 20}` })
        })
        const outcomes = await publisher.publish(batch, NEVER)
        expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
        await systemClock.sleep(5)
      }
    })()
    for (let round = 1; round <= rounds; round++) {
      await until('progress', () => seen.size >= (round * size) / (rounds + 2))
      if (flows.length < 3) flows.push(await begin())
      else await flows.shift()!.stop()
    }
    await load
    await until('all are handled', () => seen.size >= size)
    await until('and committed', async () => (await lagOf(topic, group)) === 0)
    for (const flow of flows) await flow.stop()
    for (const list of firsts.values()) expect(list).toEqual([...list].sort((a, b) => a - b))
    await publisher.close!()
  })

  test('a poison message becomes a dead letter with its story and headers, and is sent back to its group alone', async () => {
    const { topic, group, publisher } = await prepared(1)
    const other = broker.source({ topic, group: `${group}-other`, ...QUICK })
    const [mine, theirs] = [[] as string[], [] as string[]]
    let cured = false
    const step = {
      each: ({ message: { id } }: { message: { id: string } }) => {
        if (id === 'bad' && !cured) throw new Error('the total is negative')
        mine.push(id)
      },
    }
    const source = broker.source({ topic, group, ...QUICK })
    const flow = new Flow({ name: fresh('poison'), from: source, step, retry: { ...retry, attempts: 3 }, outage })
    const witness = new Flow({
      name: fresh('witness'),
      from: other,
      step: { each: ({ message: { id } }) => void theirs.push(id) },
    })
    await flow.start()
    await witness.start()
    await publisher.publish(
      [message('{"total":-1}', { id: 'bad', key: 'k' }), message('{}', { id: 'good', key: 'k' })],
      NEVER,
    )
    await until('the letter is there, and its key goes on', async () => mine.includes('good'))
    await until('it is committed', async () => (await lagOf(topic, group)) === 0)
    const [letter, ...none] = await source.deadLetters()
    expect(none).toEqual([])
    expect(letter).toMatchObject({ topic, partition: 0, offset: 0, group, attempts: 3 })
    expect(letter!.reason).toMatch(/3 attempts: .*the total is negative/)
    expect(String(letter!.headers['ce_id'])).toBe('bad')
    expect(letter!.message?.data).toBe('{"total":-1}')
    cured = true
    expect(await source.rearm(letter!.id)).toBe(1)
    await until('it is handled', () => mine.includes('bad'))
    expect(await source.deadLetters()).toEqual([])
    expect(await source.rearm(letter!.id), 'once is enough').toBe(0)
    await until('the other group is through', async () => (await lagOf(topic, `${group}-other`)) === 0)
    expect(theirs).toEqual(['bad', 'good'])
    await flow.stop()
    await witness.stop()
    await publisher.close!()
  })

  test('the topic is deleted: told clearly, and when it is made again work goes on', async () => {
    const { topic, group, publisher } = await prepared(2)
    const seen: string[] = []
    const telemetry = recordTelemetry(['flow.open_failed'])
    const from = broker.source({ topic, group, block: 50, session: '6s' })
    const each = ({ message: { id } }: { message: { id: string } }) => void seen.push(id)
    const flow = new Flow({ name: fresh('deleted'), from, step: { each }, outage: { min: 50, max: 300 } })
    await flow.start()
    const [before, during, after] = [message(), message(), message()]
    await publisher.publish([before], NEVER)
    await until('it flows', () => seen.includes(before.id))
    const admin = bare(url()).admin()
    await admin.connect()
    await admin.deleteTopics({ topics: [topic] })
    await until('the flow says so', () =>
      telemetry.of('flow.open_failed').some(({ error }) => /there is no topic/.test(String(error))),
    )
    const [outcome] = await publisher.publish([during], NEVER)
    expect(outcome, 'it is the topic of all').toMatchObject({ kind: 'down', error: { code: 'UNKNOWN_TOPIC' } })
    await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] })
    await until('publishing goes on', async () => (await publisher.publish([after], NEVER))[0]!.kind === 'ok')
    await until('and handling', () => seen.includes(after.id))
    await flow.stop()
    telemetry.stop()
    await admin.disconnect()
    await publisher.close!()
  })
})
