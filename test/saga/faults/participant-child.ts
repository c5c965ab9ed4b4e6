import amqplib from 'amqplib'
import pg from 'pg'
import { rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { Relay, Router, transactional } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { SagaRunner, sagaReplies } from '../../../src/saga/index.ts'
import { eventsOf, orderSaga, PARTICIPANTS, type Participant, tablesOf } from './participants.ts'

/** A participant, or the service whose sagas they are, until it is killed. */
interface Job {
  readonly url: string
  readonly amqp: string
  readonly exchange: string
  readonly name: Participant | 'orders'
}
const { url, amqp, exchange, name } = JSON.parse(process.env['JOB']!) as Job
const pool = new pg.Pool({ connectionString: url, max: 12 })
pool.on('error', () => {})
const broker = rabbitmq({ client: amqplib, url: amqp, exchange, declare: true })
const retry = { attempts: 100, backoff: { min: '20ms', max: '200ms' } } as const

if (name === 'orders') {
  const db = postgres({ pool, sagas: true })
  const one = orderSaga()
  const topics = PARTICIPANTS.flatMap((who) => [`${who}.done`, `${who}.refused`, `${who}.undone`])
  const replies = sagaReplies({ store: db, sagas: [one] }).consume(
    broker.source({ queue: `${exchange}.orders`, topics }),
    { retry },
  )
  await Promise.all([
    replies.start(),
    new SagaRunner({ store: db, sagas: [one], lease: 2000, maxPoll: '200ms' }).start(),
    new Relay({ from: db.outbox, to: broker, lease: '2s' }).start(),
  ])
} else {
  const db = postgres({ pool, ...tablesOf(name) })
  const events = eventsOf(name)
  const write = (tx: pg.PoolClient, { extensions }: { extensions: Record<string, unknown> }, amount: number) =>
    tx.query(`INSERT INTO ${name} (key, saga, amount) VALUES ($1, $2, $3)`, [
      extensions['sagakey'],
      extensions['sagaid'],
      amount,
    ])
  const router = new Router(name)
    .use(transactional(db))
    .on(events.wanted, (message, { tx }) =>
      db.barrier(tx, message, async () => {
        if (name === 'carrier' && message.data.n % 10 === 0) return events.refused({})
        await write(tx, message, 1)
        if (Math.random() < 0.1) throw new Error('after its work, before its commit')
        return events.done(message.data)
      }),
    )
    .on(events.undo, (message, { tx }) =>
      db.barrier(tx, message, async ({ ran }) => {
        if (ran) await write(tx, message, -1)
        return events.undone({})
      }),
    )
  const topics = [`${name}.wanted`, `${name}.undo`]
  await Promise.all([
    router.consume(broker.source({ queue: `${exchange}.${name}`, topics }), { retry }).start(),
    new Relay({ from: db.outbox, to: broker, lease: '2s' }).start(),
  ])
}
console.log('ready')
