/**
 * The same three steps as requests: each through the outbox and the relay to a participant with an inbox and a barrier, its
 * reply the same way back. All in one process and one database, with a broker inside the process.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { event, Relay, Router, telemetry, transactional } from 'waybill'
import { InProcessBroker } from 'waybill/in-process'
import { postgres } from 'waybill/postgres'
import { SagaRunner, saga, sagaReplies } from 'waybill/saga'
import { race, type SagaChildOptions } from './saga-rounds.ts'

const options = JSON.parse(process.argv[2]!) as SagaChildOptions
const pool = new pg.Pool({ connectionString: options.url, max: 20 })
const db = postgres({ pool, sagas: true, barrier: true })
const Wanted = event<{ n: number }>('work.wanted')
const Done = event<{ n: number }>('work.done')

const request = { send: (c: { input: { n: number } }) => Wanted({ n: c.input.n }), reply: Done }
const three = saga<{ n: number }>('bench-requests', { version: 1 })
  .request('a', request)
  .request('b', request)
  .request('c', request)

const broker = new InProcessBroker()
const participant = new Router('participant')
  .use(transactional(db))
  .on(Wanted, (message, { tx }) => db.barrier(tx, message, () => Done(message.data)))
const workers = [
  participant.consume(broker.source('participant', { topics: ['work.wanted'] })),
  sagaReplies({ store: db, sagas: [three] }).consume(broker.source('replies', { topics: ['work.done'] })),
  new Relay({ from: db.outbox, to: broker }),
  new SagaRunner({ store: db, sagas: [three] }),
]
for (const worker of workers) await worker.start()
const client = new SagaRunner({ store: db, sagas: [three] }).client(three)

// Whoever waits is told by the reply that ends it: `result()` would look at the table, and its pauses would be measured.
const waiting = new Map<string, () => void>()
const forget = telemetry['saga.ended'].subscribe(({ id }) => waiting.get(id)?.())

await race(options, async (n) => {
  const id = randomUUID()
  const ended = new Promise<void>((resolve) => waiting.set(id, resolve))
  await db.withTransaction((tx) => client.start(tx, { n }, { id }))
  await ended
  waiting.delete(id)
})
forget()
for (const worker of workers.reverse()) await worker.stop()
await pool.end()
