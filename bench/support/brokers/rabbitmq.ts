import amqplib from 'amqplib'
import { rabbitmq } from 'waybill/rabbitmq'
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

const EXCHANGE = 'bench'
const QUEUE = 'orders'
const PREFETCH = 2000
/** Acked with one frame. */
const ACKS = 500

type ConfirmChannel = Awaited<ReturnType<Awaited<ReturnType<typeof amqplib.connect>>['createConfirmChannel']>>

const brokerAt = (url: string) => rabbitmq({ client: amqplib as never, url, exchange: EXCHANGE, declare: true })
const sourceAt = (url: string, prefetch: object) => {
  const broker = brokerAt(url)
  return { broker, source: broker.source({ queue: QUEUE, ...prefetch }) }
}

function send(channel: ConfirmChannel, event: BareEvent): Promise<void> {
  const { 'content-type': contentType = 'application/json', ...texts } = headersOf(event, 'cloudEvents:')
  const headers = { ...texts, event_version: Number(event.version) }
  const properties = { contentType, headers, messageId: event.id, type: event.type, mandatory: true, persistent: true }
  return new Promise((resolve, reject) => {
    channel.publish(EXCHANGE, event.topic, Buffer.from(event.data), properties, (error) => {
      if (error) reject(error)
      else resolve()
    })
  })
}

async function barePublisher(url: string): Promise<BarePublisher> {
  const connection = await amqplib.connect(url)
  const channel = await connection.createConfirmChannel()
  channel.on('return', () => {
    throw new Error('no queue took a message')
  })
  return {
    publish: (events) => Promise.all(events.map((event) => send(channel, event))),
    close: () => connection.close(),
  }
}

async function bareConsume(url: string, _: string, onEvent: () => void): Promise<() => Promise<void>> {
  const connection = await amqplib.connect(url)
  const channel = await connection.createChannel()
  await channel.prefetch(PREFETCH)
  let unacked = 0
  let last: amqplib.Message | undefined
  const ack = () => {
    if (last !== undefined) channel.ack(last, true)
    last = undefined
    unacked = 0
  }
  const { consumerTag } = await channel.consume(QUEUE, (message) => {
    const { type, messageId } = message!.properties
    if (type !== 'order.placed' || !messageId) throw new Error('not an event')
    bareHandler(message!.content.toString())
    onEvent()
    // What came with one read of the socket is acked together.
    if (last === undefined) setImmediate(ack)
    last = message!
    if (++unacked === ACKS) ack()
  })
  return async () => {
    ack()
    await channel.cancel(consumerTag)
    await channel.close()
    await connection.close()
  }
}

async function stage(url: string): Promise<Stage> {
  const { broker, source } = sourceAt(url, {})
  // Opening declares the queue and all that belongs to it.
  const session = await source.open()
  await session.close()
  await broker.close()
  const connection = await amqplib.connect(url)
  const channel = await connection.createConfirmChannel()
  const count = async () => (await channel.checkQueue(QUEUE)).messageCount
  return {
    empty: () => channel.purgeQueue(QUEUE),
    count,
    async fill(_, events) {
      await channel.purgeQueue(QUEUE)
      await inParts(bareEvents(events), { size: 1000, at: 2 }, (part) => {
        return Promise.all(part.map((event) => send(channel, event)))
      })
    },
    left: count,
    close: () => connection.close(),
  }
}

export const rabbitmqBench: BrokerBench = {
  name: 'rabbitmq',
  server: 'rabbitmq',
  how: {
    'ours publish': 'quorum queue, persistent, mandatory, confirms',
    'bare publish': 'amqplib, the same, 2 batches of 1000 unconfirmed at most',
    'ours consume': `prefetch ${PREFETCH}, ${ROOM.concurrency} at once`,
    'bare consume': `amqplib, prefetch ${PREFETCH}, type, id and data read, acks up to ${ACKS} at once (multiple)`,
  },
  stage,
  publisher: (url) => brokerAt(url).publisher(),
  barePublisher,
  source(url, _, tuned) {
    const { broker, source } = sourceAt(url, tuned ? { prefetch: PREFETCH } : {})
    return { source, consume: tuned ? ROOM : {}, close: () => broker.close() }
  },
  bareConsume,
}
