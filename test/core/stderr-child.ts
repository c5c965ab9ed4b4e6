import { Redis } from 'ioredis'
import { Kafka } from 'kafkajs'
import { EventBus } from '../../src/brokers/in-process/index.ts'
import { kafka } from '../../src/brokers/kafka/index.ts'
import { nats } from '../../src/brokers/nats/index.ts'
import { rabbitmq } from '../../src/brokers/rabbitmq/index.ts'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { event, telemetry } from '../../src/core/index.ts'
import { Reject, Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { logTo } from '../../src/observability/index.ts'

const CardPaid = event<{ card: string }>('card.paid')
const refuse = () => {
  throw new Reject('card 4111-1111 \u001b[31m is refused')
}

const never = () => Promise.reject(new Error('nobody is to connect'))
const warned = ({ name }: { name: string }) =>
  telemetry.warning.publish({ where: name, message: 'not as it should be' })

/** A relay whose destination refuses an event; with a logger or without. */
async function relay(): Promise<void> {
  const db = memory()
  if (process.argv[2] === 'logged') logTo(() => {})
  await db.withTransaction((tx) => db.outbox.enqueue(tx, [CardPaid({ card: '4111-1111' })]))
  const relay = new Relay({ from: db.outbox, to: refuse as never })
  await relay.start()
  while ((await db.outbox.admin.list({ states: ['dead'] })).length === 0)
    await new Promise((resolve) => setTimeout(resolve, 5))
  await relay.stop()
}

const without: Record<string, () => unknown> = {
  store: async () => {
    const db = memory()
    await db.withTransaction(async () => db.afterCommit(refuse))
  },
  bus: () => {
    const bus = new EventBus()
    bus.subscribe(CardPaid, refuse)
    bus.publish(CardPaid({ card: '4111-1111' }))
  },
  // Nothing is connected before something is published.
  rabbitmq: () => warned(rabbitmq({ client: { connect: never }, url: 'amqp://localhost', exchange: 'shop' })),
  kafka: () => warned(kafka({ client: Kafka, brokers: ['localhost:9'] })),
  nats: () => warned(nats({ connection: never, stream: 'SHOP' })),
  redis: () => warned(redisStreams({ client: new Redis({ lazyConnect: true }) })),
}
await (without[process.argv[2] ?? ''] ?? relay)()
