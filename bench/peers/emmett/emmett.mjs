/**
 * Emmett with its batch projection (https://event-driven-io.github.io/emmett/event-stores/postgresql.html): a consumer
 * that pulls a thousand at a time. Emmett 0.42 calls the projection for each event of them, whatever was pulled, and stores a
 * checkpoint after each: so each call makes one upsert.
 */
import { SQL } from '@event-driven-io/dumbo'
import {
  getPostgreSQLEventStore,
  postgreSQLEventStoreConsumer,
  postgreSQLRawBatchSQLProjection,
} from '@event-driven-io/emmett-postgresql'
import { drain } from '../../support/pg-drain.ts'

const { url, events, cold, batch, mode } = JSON.parse(process.argv[2])

if (mode === 'seed') await seed()
else {
  await drain({ events, cold }, async (onEvent) => {
    const customers = postgreSQLRawBatchSQLProjection({
      name: 'customers',
      canHandle: ['order.placed'],
      evolve: (given) => {
        onEvent(given.length)
        return [...new Map(given.map(({ data: { key, data } }) => [key, data]))].map(
          ([key, data]) => SQL`INSERT INTO customers (id, name, country, last_order, total)
            VALUES (${key}, ${data.customer.name}, ${data.customer.country}, ${data.orderId}, ${data.total})
            ON CONFLICT (id) DO UPDATE SET name = excluded.name, country = excluded.country,
              last_order = excluded.last_order, total = excluded.total`,
        )
      },
    })
    const consumer = postgreSQLEventStoreConsumer({
      connectionString: url,
      pulling: { batchSize: batch, pullingFrequencyInMs: 1 },
      stopWhen: { noMessagesLeft: true },
    })
    consumer.projector({ processorId: 'customers', projection: customers })
    const running = consumer.start()
    return async () => {
      await running
      await consumer.close()
    }
  })
}

async function seed() {
  const { keyOf, KEYS, order } = await import('../../support/pg-events.ts')
  const store = getPostgreSQLEventStore(url)
  for (let key = 0; key < Math.min(KEYS, events); key++) {
    const list = []
    for (let i = key; i < events; i += KEYS) {
      list.push({ type: 'order.placed', data: { key: keyOf(i), data: order(i) } })
    }
    await store.appendToStream(keyOf(key), list)
  }
  await store.close()
}
