/**
 * pg-transactional-outbox by polling, the faster of its two listeners here. As many at once as its pool has connections, and
 * without the protection that its documentation says an outbox may leave off.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { DatabaseSetup, getDisabledLogger, initializePollingMessageListener } from 'pg-transactional-outbox'
import { drain } from '../support/pg-drain.ts'

const { url, events, cold, mode } = JSON.parse(process.argv[2])
const names = { outboxOrInbox: 'outbox', database: new URL(url).pathname.slice(1), schema: 'public', table: 'outbox' }
const config = { ...names, listenerRole: 'postgres', handlerRole: 'postgres', nextMessagesName: 'next_outbox_messages' }

if (mode === 'seed') await seed()
else {
  await drain({ events, cold }, async (tell) => {
    const settings = {
      dbSchema: 'public',
      dbTable: 'outbox',
      nextMessagesFunctionSchema: 'public',
      nextMessagesFunctionName: 'next_outbox_messages',
      nextMessagesBatchSize: 10,
      nextMessagesLockInMs: 5000,
      nextMessagesPollingIntervalInMs: 25,
      enableMaxAttemptsProtection: false,
      enablePoisonousMessageProtection: false,
    }
    const connection = { connectionString: url }
    const [shutdown] = initializePollingMessageListener(
      { outboxOrInbox: 'outbox', dbListenerConfig: connection, dbHandlerConfig: connection, settings },
      { handle: async () => tell(1) },
      getDisabledLogger(),
    )
    return async () => {
      const client = new pg.Client(connection)
      await client.connect()
      const left = 'SELECT count(*)::int AS left FROM outbox WHERE processed_at IS NULL'
      while ((await client.query(left)).rows[0].left > 0) await new Promise((resolve) => setTimeout(resolve, 20))
      await client.end()
      await shutdown()
    }
  })
  process.exit(0)
}

async function seed() {
  const { keyOf, order } = await import('../support/pg-events.ts')
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  await client.query(DatabaseSetup.dropAndCreateTable(config))
  await client.query(DatabaseSetup.createPollingFunction(config))
  await client.query(DatabaseSetup.setupPollingIndexes(config))
  const insert = `INSERT INTO outbox (id, aggregate_type, aggregate_id, message_type, segment, payload, concurrency, created_at)
    SELECT id::uuid, 'order', key, 'order.placed', key, payload::jsonb, 'parallel', clock_timestamp()
    FROM unnest($1::text[], $2::text[], $3::text[]) AS event (id, key, payload)`
  for (let from = 0; from < events; from += 1000) {
    const indexes = Array.from({ length: Math.min(1000, events - from) }, (_, i) => from + i)
    await client.query(insert, [
      indexes.map(() => randomUUID()),
      indexes.map(keyOf),
      indexes.map((i) => JSON.stringify(order(i))),
    ])
  }
  await client.end()
}
