import kafkajs from 'kafkajs'
import { expect, test } from 'vitest'
import * as control from '../../../scripts/services/server.ts'
import { kafka } from '../../../src/brokers/kafka/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { Relay } from '../../../src/index.ts'
import { memory } from '../../../src/memory/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { privateCluster } from './private.ts'
import { addressOf, bare, fresh, message, NEVER, until } from './support.ts'

describeWith(['kafka'], 'kafka with three brokers', () => {
  test('one is killed under load, and another: nothing acknowledged is lost, first deliveries keep their order', async () => {
    const servers = await privateCluster()
    const brokers = servers.map(({ url }) => addressOf(url))
    const broker = kafka({ client: kafkajs.Kafka, brokers, timeout: '5s' })
    const [topic, group] = [fresh(), fresh('g')]
    const create = { partitions: 6, replication: 3 }
    const publisher = broker.publisher({ topic, create })
    await until('the cluster is complete', async () => {
      return await publisher.start!().then(
        () => true,
        () => false,
      )
    })
    const seen = new Set<string>()
    const firsts = new Map<string, number[]>()
    const each = ({ message: { id, key } }: { message: { id: string; key?: string | undefined } }) => {
      if (seen.has(id)) return
      seen.add(id)
      firsts.set(key!, [...(firsts.get(key!) ?? []), Number(id.split('-')[1])])
    }
    const from = broker.source({ topic, group, create, session: '3s', block: 100 })
    const flow = new Flow({ name: fresh('cluster'), from, step: { each }, outage: { min: 20, max: 200 } })
    await flow.start()
    const accepted = new Set<string>()
    let over = false
    const load = (async () => {
      for (let n = 0; !over; ) {
        const batch = Array.from({ length: 30 }, () => message('{}', { id: `n-${++n}`, key: `k${n % 12}` }))
        for (let arrived = false; !arrived && !over; ) {
          const outcomes = await publisher.publish(batch, NEVER).catch(() => [])
          arrived = outcomes.length > 0 && outcomes.every(({ kind }) => kind === 'ok')
          for (const [i, { kind }] of outcomes.entries()) if (kind === 'ok') accepted.add(batch[i]!.id)
          await systemClock.sleep(arrived ? 5 : 50)
        }
      }
    })()
    for (let round = 0; round < scale({ test: 2, full: 4, torture: 20 }); round++) {
      const before = accepted.size
      await until('messages flow', () => accepted.size > before + 300)
      const victim = servers[1 + (round % 2)]!
      await control.stop(victim, 'kill')
      const without = accepted.size
      await until('messages flow without it', () => accepted.size > without + 300)
      await control.start(victim)
    }
    const before = accepted.size
    await until('messages flow again', () => accepted.size > before + 300)
    over = true
    await load
    await until('all of them came', () => [...accepted].every((id) => seen.has(id)))
    await flow.stop()
    for (const list of firsts.values()) expect(list).toEqual([...list].sort((a, b) => a - b))
    await publisher.close!()
    await broker.close()
  })

  // In a cluster of its own: a broker that was killed and started may take its time to be one of three again.
  test('a partition that has lost its only broker costs only what goes to its topic', async () => {
    const servers = await privateCluster()
    const brokers = servers.map(({ url }) => addressOf(url))
    const admin = bare(servers[0]!.url).admin()
    await admin.connect()
    await until('the cluster is complete', async () => (await admin.describeCluster()).brokers.length === 3, 180_000)
    const nodes = (await admin.describeCluster()).brokers.map(({ nodeId }) => nodeId).sort()
    const [dark, fine] = [fresh(), fresh()]
    const configEntries = [{ name: 'min.insync.replicas', value: '1' }]
    const on = (...replicas: number[]) => replicas.map((node, partition) => ({ partition, replicas: [node] }))
    await admin.createTopics({
      topics: [
        { topic: dark, replicaAssignment: on(nodes[0]!, nodes[2]!), configEntries },
        { topic: fine, replicaAssignment: on(nodes[0]!), configEntries },
      ],
    })
    await admin.disconnect()
    await control.stop(servers[2]!, 'kill')
    const broker = kafka({ client: kafkajs.Kafka, brokers })
    await until('its leader is gone', async () => {
      const [outcome] = await broker
        .publisher({ topic: dark })
        .publish([message()], NEVER)
        // Whoever asks for the topic first finds it too.
        .catch((error: unknown) => [{ kind: 'down', error } as const])
      return outcome?.kind === 'down' && (outcome.error as { code?: string }).code === 'NO_LEADER'
    })
    const db = memory()
    const relay = new Relay({ from: db.outbox, to: broker.publisher(), outage: { min: 20, max: 500 } })
    const to = (type: string, n: number) => message('{}', { type, key: `${type} ${n % 10}` })
    const sent = Array.from({ length: 60 }, (_, n) => to(n % 2 === 0 ? fine : dark, n))
    await db.withTransaction((tx) => db.outbox.enqueue(tx, sent))
    await relay.start()
    await until('the others arrive', async () => (await db.outbox.admin.stats()).states.published.count === 30, 60_000)
    await relay.stop()
    expect((await db.outbox.admin.stats()).states.dead.count).toBe(0)
    await broker.close()
  })
})
