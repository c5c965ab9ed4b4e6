import { AclOperationTypes, AclPermissionTypes, AclResourceTypes, Kafka, ResourcePatternTypes } from 'kafkajs'
import { expect, test } from 'vitest'
import { type KafkaBroker, kafka } from '../../../src/brokers/kafka/index.ts'
import { type RawMessage, Unavailable } from '../../../src/core/index.ts'
import type { KafkaClient } from '../../../src/drivers/kafka/kafka.ts'
import { recordTelemetry } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { kafkaWithRights } from './private.ts'
import { bare, fresh, message, NEVER, onServer, until } from './support.ts'

const to = (topic: string, key = topic) => message('{}', { type: topic, key })

/** By the type of a message, as is the default. */
async function publish(broker: KafkaBroker, ...messages: readonly RawMessage[]) {
  const publisher = broker.publisher()
  const outcomes = await publisher.publish(messages, NEVER)
  return outcomes.map((outcome) => (outcome.kind === 'ok' ? 'ok' : (outcome.error as { code: string }).code))
}

/**
 * As the server says of a topic whose partition has no leader, whenever that is asked for: by its name, or with all there are.
 * cluster.full has a real one.
 */
function withoutLeader(dark: string): typeof Kafka {
  return class extends Kafka {
    constructor(config: ConstructorParameters<typeof Kafka>[0]) {
      super(config)
      const symbol = Object.getOwnPropertySymbols(this).find(({ description }) =>
        description?.endsWith('createCluster'),
      )!
      const self = this as unknown as Record<symbol, (options: object) => { brokerPool: Asked }>
      const create = self[symbol]!
      self[symbol] = (options) => {
        const cluster = create(options)
        const refresh = cluster.brokerPool.refreshMetadata.bind(cluster.brokerPool)
        cluster.brokerPool.refreshMetadata = async (topics) => {
          if (topics.length > 0 && !topics.includes(dark)) return await refresh(topics)
          throw Object.assign(new Error('There is no leader for this topic-partition'), {
            type: 'LEADER_NOT_AVAILABLE',
          })
        }
        return cluster
      }
    }
  }
}

interface Asked {
  refreshMetadata(topics: readonly string[]): Promise<void>
}

test('what waits for a request that finds Kafka away is down too, and not suspected: nobody has sent it', async () => {
  const client: KafkaClient = {
    driver: 'away',
    producer: async () => ({
      send: async () => {
        throw new Unavailable('away')
      },
      close: async () => {},
    }),
    consumer: async () => {
      throw new Unavailable('away')
    },
    admin: async () => ({
      partitions: async (topics) => new Map(topics.map((topic) => [topic, 1])),
      create: async () => {},
      bounds: async () => [],
      committed: async () => [],
      deleteGroup: async () => {},
      close: async () => {},
    }),
  }
  const broker = kafka({ client })
  const publisher = broker.publisher({ topic: 't', batchBytes: 1 })
  expect(await publisher.publish([to('t'), to('t')], NEVER)).toMatchObject([
    { kind: 'down', error: { code: 'UNAVAILABLE' } },
    { kind: 'down', untried: true },
  ])
  await broker.close()
})

describeWith(['kafka'], 'kafka: topics by message', () => {
  const url = () => service('kafka').url

  async function made(count: number, at = url()): Promise<string[]> {
    const topics = Array.from({ length: count }, () => fresh())
    const admin = bare(at).admin()
    await admin.connect()
    await admin.createTopics({ topics: topics.map((topic) => ({ topic, numPartitions: 1, replicationFactor: 1 })) })
    await admin.disconnect()
    return topics
  }

  test('one that is deleted under the publisher costs only its own messages', async () => {
    const [a, b, c] = (await made(3)) as [string, string, string]
    const broker = onServer(url())
    const publisher = broker.publisher()
    const batch = () => [to(a), to(b), to(c), to(b), to(a)]
    expect((await publisher.publish(batch(), NEVER)).map(({ kind }) => kind)).toEqual(Array(5).fill('ok'))
    const admin = bare(url()).admin()
    await admin.connect()
    await admin.deleteTopics({ topics: [b] })
    // The controller has deleted it; the broker hears of that a little later.
    await until('the broker knows', async () => !(await admin.listTopics()).includes(b))
    await admin.disconnect()
    const outcomes = await publisher.publish(batch(), NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'failed', 'ok', 'failed', 'ok'])
    expect(outcomes[1]).toMatchObject({ error: { code: 'UNKNOWN_TOPIC' } })
    await broker.close()
  })

  test('one that this user may not write to, or not even see, costs only its own messages', async () => {
    const server = await kafkaWithRights('ann', 'right')
    const [fine, unwritable, hidden] = (await made(3, server.open)) as [string, string, string]
    const admin = bare(server.open).admin()
    await admin.connect()
    const denied = {
      resourceType: AclResourceTypes.TOPIC,
      resourcePatternType: ResourcePatternTypes.LITERAL,
      host: '*',
    }
    await admin.createAcls({
      acl: [
        [unwritable, AclOperationTypes.WRITE, AclPermissionTypes.DENY],
        [unwritable, AclOperationTypes.DESCRIBE, AclPermissionTypes.ALLOW],
        [hidden, AclOperationTypes.ALL, AclPermissionTypes.DENY],
      ].map(([resourceName, operation, permissionType]) => ({
        ...denied,
        resourceName: resourceName as string,
        principal: 'User:ann',
        operation: operation as AclOperationTypes,
        permissionType: permissionType as AclPermissionTypes,
      })),
    })
    const any = {
      resourceType: AclResourceTypes.TOPIC,
      resourcePatternType: ResourcePatternTypes.ANY,
      operation: AclOperationTypes.ANY,
      permissionType: AclPermissionTypes.ANY,
    }
    const known = async () => (await admin.describeAcls(any)).resources.flatMap(({ acls }) => acls).length
    await until('the broker knows', async () => (await known()) === 3)
    await admin.disconnect()
    const broker = onServer(server.url, { sasl: { mechanism: 'plain', username: 'ann', password: 'right' } })
    const batch = [to(fine), to(unwritable), to(hidden), to(fine, 'other')]
    // Each time: it must not be met first by whoever is innocent.
    for (let i = 0; i < 2; i++) {
      expect(await publish(broker, ...batch)).toEqual(['ok', 'NOT_ALLOWED', 'NOT_ALLOWED', 'ok'])
    }
    await broker.close()
  })

  test('a partition without a leader costs only what goes to its topic, and a topic of others nothing', async () => {
    const [fine, dark, other] = (await made(3)) as [string, string, string]
    const mine = onServer(url(), { client: withoutLeader(dark) })
    const batch = [to(fine), to(dark), to(other), to(dark, 'k'), to(fine, 'k2')]
    const outcomes = await mine.publisher().publish(batch, NEVER)
    expect(outcomes.map(({ kind }) => kind)).toEqual(['ok', 'down', 'ok', 'down', 'ok'])
    expect(outcomes[1]).toMatchObject({ error: { code: 'NO_LEADER', message: expect.stringMatching(/no leader/) } })
    const fixed = mine.publisher({ topic: fine })
    await fixed.start!()
    expect(await fixed.publish([to(fine)], NEVER)).toEqual([{ kind: 'ok' }])
    await mine.close()
  })

  test('settings that lose records are told when a topic is first met', async () => {
    const [topic] = (await made(1)) as [string]
    const broker = onServer(url())
    const recorder = recordTelemetry(['warning'])
    expect(await publish(broker, to(topic), to(topic))).toEqual(['ok', 'ok'])
    const told = recorder.of('warning').filter(({ message: text }) => text.includes(`topic ${topic} has one copy`))
    recorder.stop()
    expect(told).toHaveLength(1)
    await broker.close()
  })
})
