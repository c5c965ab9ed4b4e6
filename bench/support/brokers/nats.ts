import { jetstream, jetstreamManager } from '@nats-io/jetstream'
import { connect, createInbox } from '@nats-io/transport-node'
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

/** A batch of which not all is answered. */
interface Unanswered {
  left: number
  done(): void
  failed(error: Error): void
}

/**
 * Not `js.publish`, which makes a timer and a promise for each message: replies come back to an inbox of our own, where
 * they are counted by batch. Headers are text that is put together once, as JetStream wants it.
 */
async function barePublisher(url: string): Promise<BarePublisher> {
  const connection = await connect({ servers: url })
  const inbox = createInbox()
  const batches = new Map<string, Unanswered>()
  let next = 0
  connection.subscribe(`${inbox}.*`, {
    callback: (_, answer) => {
      const id = answer.subject.slice(inbox.length + 1)
      const batch = batches.get(id)!
      const { stream, error } = answer.data.length === 0 ? {} : answer.json<{ stream?: string; error?: object }>()
      if (stream !== STREAM || error !== undefined) batch.failed(new Error('a message was refused'))
      if (--batch.left > 0) return
      batches.delete(id)
      batch.done()
    },
  })
  const send = (event: BareEvent, reply: string) => {
    // This binding has the type of the data among its attributes too.
    const all = headersOf(event, 'ce-')
    all['ce-datacontenttype'] = 'application/json'
    let text = 'NATS/1.0\r\n'
    for (const name in all) text += `${name}: ${all[name]}\r\n`
    text += `Nats-Msg-Id: ${event.source} ${event.id} ${event.topic}\r\nNats-Expected-Stream: ${STREAM}\r\n\r\n`
    const headers = { encode: () => utf8.encode(text) } as never
    connection.publish(event.topic, utf8.encode(event.data), { reply, headers })
  }
  const publish = (events: readonly BareEvent[]) =>
    new Promise<void>((done, failed) => {
      const id = String(next++)
      const timer = setTimeout(() => failed(new Error('not answered in time')), 10_000)
      const whole = () => {
        clearTimeout(timer)
        done()
      }
      batches.set(id, { left: events.length, done: whole, failed })
      for (const event of events) send(event, `${inbox}.${id}`)
    })
  return { publish, close: () => connection.close() }
}

async function bareConsume(url: string, group: string, onEvent: () => void): Promise<() => Promise<void>> {
  const connection = await connect({ servers: url })
  const consumer = await jetstream(connection).consumers.get(STREAM, group)
  const confirmed: Promise<unknown>[] = []
  let handled = 0
  const messages = await consumer.consume({
    max_messages: ROOM.buffer.count,
    callback: (message) => {
      // What a handler is chosen by, and what tells a message from its duplicate, are headers.
      const { headers } = message
      if (headers?.get('ce-type') !== 'order.placed' || headers.get('ce-id') === '') throw new Error('not an event')
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
    'bare publish': 'publish with message ids, replies counted by batch, 2 batches of 1000 unanswered at most',
    'ours consume': `pull, explicit acks confirmed by batch, ${ROOM.concurrency} at once`,
    'bare consume': `pull of ${ROOM.buffer.count}, type, id and data read, explicit acks, each ${CONFIRMED}th confirmed`,
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
