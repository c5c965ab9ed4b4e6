import kafkajs from 'kafkajs'
import { expect, test } from 'vitest'
import * as control from '../../../scripts/services/server.ts'
import { kafka } from '../../../src/brokers/kafka/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { privateCluster } from './private.ts'
import { addressOf, fresh, message, NEVER, until } from './support.ts'

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
})
