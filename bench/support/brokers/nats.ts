import { jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect, headers as newHeaders } from '@nats-io/transport-node'
import { nats } from 'waybill/nats'
import {
  type BareEvent,
  type BarePublisher,
  type BrokerBench,
  bareHandler,
  headersOf,
  ROOM,
  type Stage,
} from './broker.ts'
import { bareEvents, inParts } from './messages.ts'

const STREAM = 'ORDERS'
/** Acks are only sent; one of so many is answered, and with it those before. */
const CONFIRMED = 500

const brokerAt = (url: string) =>
  nats({ connection: () => connect({ servers: url }), stream: STREAM, create: { subjects: ['order.>'] } })

const utf8 = new TextEncoder()

async function barePublisher(url: string): Promise<BarePublisher> {
  const connection = await connect({ servers: url })
  const js = jetstream(connection)
  const publish = (event: BareEvent) => {
    const headers = newHeaders()
    const all = headersOf(event, 'ce-')
    for (const name in all) headers.set(name, all[name]!)
    const msgID = `${event.source} ${event.id} ${event.topic}`
    return js.publish(event.topic, utf8.encode(event.data), { headers, msgID, expect: { streamName: STREAM } })
  }
  return { publish: (events) => Promise.all(events.map(publish)), close: () => connection.close() }
}

async function bareConsume(url: string, group: string, onEvent: () => void): Promise<() => Promise<void>> {
  const connection = await connect({ servers: url })
  const consumer = await jetstream(connection).consumers.get(STREAM, group)
  const confirmed: Promise<unknown>[] = []
  let handled = 0
  const messages = await consumer.consume({
    max_messages: ROOM.buffer.count,
    callback: (message) => {
      bareHandler(message.string())
      onEvent()
      if (++handled % CONFIRMED === 0) confirmed.push(message.ackAck())
      else message.ack()
    },
  })
  return async () => {
    await Promise.all(confirmed)
    await messages.close()
    await connection.drain()
  }
}

async function stage(url: string): Promise<Stage> {
  const connection = await connect({ servers: url })
  const manager = await jetstreamManager(connection)
  const publisher = brokerAt(url).publisher()
  // Declares the stream.
  await publisher.start()
  await publisher.close()
  const bare = await barePublisher(url)
  const count = async () => (await manager.streams.info(STREAM)).state.messages
  return {
    empty: () => manager.streams.purge(STREAM),
    count,
    async fill(group, events) {
      if ((await count()) !== events) {
        await manager.streams.purge(STREAM)
        await inParts(bareEvents(events), { size: 1000, at: 2 }, (part) => bare.publish(part))
      }
      const settings = { ack_wait: 30_000_000_000, max_ack_pending: 65_536 }
      await manager.consumers.add(STREAM, { durable_name: group, ack_policy: 'explicit', ...settings })
    },
    async left(group) {
      const { num_pending, num_ack_pending } = await manager.consumers.info(STREAM, group)
      await manager.consumers.delete(STREAM, group)
      return num_pending + num_ack_pending
    },
    async close() {
      await bare.close()
      await connection.close()
    },
  }
}

export const natsBench: BrokerBench = {
  name: 'nats',
  server: 'nats',
  how: {
    'ours publish': 'stream on disk, message ids, each answered',
    'bare publish': 'js.publish with msgID, 2 batches of 1000 unanswered at most',
    'ours consume': `pull, explicit acks confirmed by batch, ${ROOM.concurrency} at once`,
    'bare consume': `pull of ${ROOM.buffer.count}, explicit acks, each ${CONFIRMED}th confirmed`,
  },
  stage,
  publisher: (url) => brokerAt(url).publisher(),
  barePublisher,
  source(url, group, tuned) {
    const broker = brokerAt(url)
    return { source: broker.source({ group, create: true }), consume: tuned ? ROOM : {}, close: () => broker.close() }
  },
  bareConsume,
}
