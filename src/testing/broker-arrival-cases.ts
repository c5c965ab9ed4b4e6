import { deepStrictEqual, ok, strictEqual } from 'node:assert/strict'
import { Message, type RawMessage } from '../core/index.ts'
import { DONE } from '../flow/index.ts'
import { type BrokerProbe, ids, message, NEVER, same } from './broker-probe.ts'
import type { BrokerCase } from './publisher-source-suite.ts'

/** Publishes one, receives one, and they are the same. */
async function travels(probe: BrokerProbe, published: RawMessage): Promise<Message> {
  const session = await probe.open()
  await probe.send(published)
  const [received] = await probe.receive(session, 1)
  same(received!.message, published)
  await probe.settle(session, DONE, received!)
  return received!.message
}

/** What is published arrives as it was. */
export const arrivalCases: readonly BrokerCase[] = [
  {
    name: 'declares the features that its source and publisher have',
    async run({ broker }, { features }) {
      const source = broker.source('one').features
      strictEqual(source.redelivers ?? false, features.redelivers ?? false, 'redelivers')
      strictEqual(source.holdsKeys ?? false, features.holdsKeys ?? false, 'holdsKeys')
      if (broker.publisher.features.ordered) ok(features.ordered, 'an ordered publisher keeps the order of a key')
    },
  },
  {
    name: 'every attribute and extension arrives',
    async run(probe) {
      const attributes = {
        id: 'A-1 / é',
        source: 'urn:shop:orders?x=1&y=2',
        type: 'com.example.order.placed',
        subject: 'orders/4711',
        time: '2024-02-29T23:59:59.123456+05:30',
        datacontenttype: 'application/vnd.shop+json; charset=utf-8',
        dataschema: 'https://example.com/schemas/order.json#v2',
        extensions: {
          partitionkey: 'customer 7',
          tenantid: 'acme',
          eventversion: 2,
          traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',
          tracestate: 'congo=t61rcWkgMzE,rojo=00f067aa0ba902b7',
          sampled: true,
          negative: -2147483648,
          bytes: new Uint8Array([0, 1, 2, 253, 254, 255]),
          blank: ' ',
          quoted: 'a "quoted", comma; and % sign',
        },
      }
      const received = await travels(probe, new Message(attributes, '{"total":12}'))
      deepStrictEqual([received.key, received.tenant, received.version], ['customer 7', 'acme', 2])
    },
  },
  {
    name: 'a message with nothing but the required attributes arrives',
    async run(probe) {
      await travels(probe, new Message({ id: '1', source: 's', type: 't' }, '{}'))
    },
  },
  {
    name: 'JSON text arrives byte by byte: a pass-through changes nothing',
    async run(probe) {
      await travels(probe, message('{ "b" : 1.0,\n\t"a":1e3, "b":12345678901234567890, "\\u00e9":"\\ud83d\\ude00" }'))
    },
  },
  {
    name: 'bytes arrive, all 256 of them',
    async run(probe) {
      const bytes = Uint8Array.from({ length: 256 }, (_, i) => i)
      const { id } = message()
      const attributes = { id, source: '/conformance', type: 'bytes', datacontenttype: 'application/octet-stream' }
      await travels(probe, new Message(attributes, bytes))
    },
  },
  {
    name: 'Unicode arrives, in data and in attributes',
    async run(probe) {
      const text = 'Grüße, 你好, שלום, 😀, e\u0301, \u200b'
      const attributes = { id: text, source: '/ü', type: 'über.type', subject: text, extensions: { note: text } }
      await travels(probe, new Message(attributes, JSON.stringify({ text })))
    },
  },
  {
    name: 'a message without data arrives',
    async run(probe) {
      await travels(probe, message(''))
    },
  },
  {
    name: 'a message of 256 kB arrives',
    async run(probe) {
      await travels(probe, message(JSON.stringify({ text: 'äbcdefgh'.repeat(256 * 113) })))
    },
  },
  {
    name: 'publishing nothing returns nothing',
    async run(probe) {
      deepStrictEqual(await probe.publish([]), [])
    },
  },
  {
    name: 'a refused message is distinguished from those that arrived, by its place',
    needs: ['refuses'],
    async run(probe) {
      const session = await probe.open()
      const [before, after] = [message(), message()]
      const outcomes = await probe.publish([before, probe.broker.refused!() as RawMessage, after])
      deepStrictEqual([outcomes.length, outcomes[0]!.kind, outcomes[2]!.kind], [3, 'ok', 'ok'])
      ok(outcomes[1]!.kind === 'rejected' || outcomes[1]!.kind === 'failed', `refused, not ${outcomes[1]!.kind}`)
      deepStrictEqual(ids(await probe.receive(session, 2)).sort(), [before.id, after.id].sort())
    },
  },
  {
    name: 'a batch of 1000 arrives whole',
    async run(probe) {
      const session = await probe.open()
      const batch = Array.from({ length: 1000 }, (_, i) => message(`{"n":${i}}`, { key: `k${i % 10}` }))
      await probe.send(...batch)
      const received = await probe.receive(session, 1000)
      deepStrictEqual(ids(received).sort(), batch.map(({ id }) => id).sort())
      await probe.settle(session, DONE, ...received)
    },
  },
  {
    name: 'several publishes at once all arrive',
    async run(probe) {
      const session = await probe.open()
      const batches = Array.from({ length: 8 }, () => Array.from({ length: 25 }, () => message()))
      await Promise.all(batches.map((batch) => probe.send(...batch)))
      const received = await probe.receive(session, 200)
      deepStrictEqual(
        ids(received).sort(),
        batches
          .flat()
          .map(({ id }) => id)
          .sort(),
      )
    },
  },
  {
    name: 'messages of one key come in the order they were published',
    needs: ['ordered'],
    async run(probe) {
      const session = await probe.open()
      const batch = Array.from({ length: 300 }, (_, i) => message(`{"n":${i}}`, { key: `k${i % 3}` }))
      for (let i = 0; i < batch.length; i += 50) await probe.send(...batch.slice(i, i + 50))
      const received: string[][] = [[], [], []]
      for (let count = 0; count < batch.length; ) {
        const taken = await probe.receive(session, 1)
        taken.push(...(await session.take({ count: 40, bytes: 1e6 }, NEVER)))
        for (const { key, message } of taken) received[Number(key!.slice(1))]!.push(message.id)
        await probe.settle(session, DONE, ...taken)
        count += taken.length
      }
      const expected = [0, 1, 2].map((k) => batch.filter((_, i) => i % 3 === k).map(({ id }) => id))
      deepStrictEqual(received, expected)
    },
  },
]
