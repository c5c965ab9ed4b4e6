import { expect, test } from 'vitest'
import type { OutgoingRecord } from '../../../src/drivers/kafka/kafka.ts'
import { kafkaJs } from '../../../src/drivers/kafka/kafka-js.ts'
import { dealOut } from '../../../src/drivers/kafka/kafka-js-assigner.ts'
import type { KafkaJs } from '../../../src/drivers/kafka/kafka-js-shapes.ts'

/** A client that answers for some partitions only, as kafkajs does when a leader moves to a broker that has answered. */
function forgetful(answered: readonly number[]): KafkaJs {
  return {
    producer: (options: { createPartitioner(): (about: object) => number }) => {
      const partitionOf = options.createPartitioner()
      return {
        connect: async () => {},
        disconnect: async () => {},
        async sendBatch({ topicMessages }: { topicMessages: { topic: string; messages: object[] }[] }) {
          const partitionMetadata = [{}, {}, {}]
          // As a retry does.
          for (let i = 0; i < 2; i++) {
            for (const { messages } of topicMessages)
              for (const message of messages) partitionOf({ partitionMetadata, message })
          }
          return answered.map((partition) => ({ topicName: 't', partition, errorCode: 0 }))
        },
      }
    },
  } as unknown as KafkaJs
}

const records = (): OutgoingRecord[] =>
  [0, 1, 2].map(() => ({ topic: 't', key: null, value: Buffer.from('{}'), headers: {} }))

test('success is success only when every partition was answered for', async () => {
  let next = 0
  const settings = { partitionOf: () => next++ % 3, timeout: 1000, topics: ['t'] }
  const whole = await kafkaJs(forgetful([0, 1, 2])).producer(settings)
  await whole.send(records())
  const part = await kafkaJs(forgetful([0, 2])).producer(settings)
  await expect(part.send(records())).rejects.toMatchObject({
    code: 'UNAVAILABLE',
    message: /no response for partition 1 of t/,
  })
})

test('a record keeps its partition when it is sent again', async () => {
  let next = 0
  const settings = { partitionOf: () => next++ % 3, timeout: 1000, topics: ['t'] }
  const producer = await kafkaJs(forgetful([0, 1, 2])).producer(settings)
  const sent = records()
  await producer.send(sent)
  expect(sent.map(({ partition }) => partition)).toEqual([0, 1, 2])
})

test('a producer asks for its own topics, and for all where one of them is not known yet', async () => {
  const create = Symbol('private:Kafka:createCluster')
  const asked: string[][] = []
  /** As kafkajs does it; `new` is a topic of which the server that is asked has not heard. */
  class Client {
    [create] = () => ({ targetTopics: new Set<string>() })
    producer() {
      const { targetTopics } = this[create]()
      const connect = async () => {
        asked.push([...targetTopics])
        if (targetTopics.has('new')) throw Object.assign(new Error('?'), { type: 'UNKNOWN_TOPIC_OR_PARTITION' })
      }
      return { connect, disconnect: async () => {} }
    }
  }
  const connected = (topics: readonly string[]) =>
    kafkaJs(new Client() as unknown as KafkaJs).producer({ partitionOf: () => 0, timeout: 1000, topics })
  for (const topics of [['a', 'b'], ['a', 'new'], []]) await connected(topics)
  expect(asked).toEqual([['a', 'b'], ['a', 'new'], [], []])
})

test('partitions are dealt out evenly, each to somebody who reads its topic', () => {
  const partitions = new Map([
    ['a', [0, 1, 2, 3]],
    ['b', [0, 1]],
    ['gone', []],
  ])
  const readers = [
    { memberId: 'm1', topics: ['a', 'b'] },
    { memberId: 'm2', topics: ['a', 'gone'] },
    { memberId: 'm3', topics: ['b'] },
  ]
  expect(dealOut(readers, partitions).map(([id, assigned]) => [id, Object.fromEntries(assigned)])).toEqual([
    ['m1', { a: [0, 2] }],
    ['m2', { a: [1, 3] }],
    ['m3', { b: [0, 1] }],
  ])
})
