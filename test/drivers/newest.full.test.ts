import pg from 'pg'
import postgresJs from 'postgres'
import { afterEach, describe, expect, test, vi } from 'vitest'
import { InProcessBroker } from '../../src/brokers/in-process/index.ts'
import { redisScript } from '../../src/drivers/redis/connection.ts'
import { redisOf } from '../../src/drivers/redis/recognise.ts'
import { event, Relay, Router, transactional } from '../../src/index.ts'
import { type Postgres, postgres, sqlOf } from '../../src/postgres/index.ts'
import { brokerSuite, type Suite } from '../../src/testing/index.ts'
import { factory as kafkaFactory, onServer } from '../brokers/kafka/support.ts'
import { connecting, factory as natsFactory } from '../brokers/nats/support.ts'
import { factory as rabbitmqFactory } from '../brokers/rabbitmq/support.ts'
import { factory as streamsFactory } from '../brokers/redis-streams/support.ts'
import { conformance, ioredis, nodeRedis } from '../redis/support.ts'
import { CLIENTS, newestClients } from '../support/newest.ts'
import { cluster, sentinel } from '../support/redis-topologies.ts'
import { describeWith, freshDatabase, service, without } from '../support/services.ts'
import { runSuite } from '../support/suite.ts'
import { eventually } from '../support/wait.ts'

/**
 * A round with the newest clients that run on this Node. What we use of a client beside its public face may go with any
 * release, and a range in somebody's package.json takes that release at once: it is better seen here.
 */

vi.mock('ioredis', async () => (await import('../support/newest.ts')).newest('ioredis'))
vi.mock('redis', async () => (await import('../support/newest.ts')).newest('redis'))
vi.mock('pg', async () => (await import('../support/newest.ts')).newest('pg'))
vi.mock('postgres', async () => (await import('../support/newest.ts')).newest('postgres'))
vi.mock('amqplib', async () => (await import('../support/newest.ts')).newest('amqplib'))
vi.mock('kafkajs', async () => (await import('../support/newest.ts')).newest('kafkajs'))
vi.mock('@nats-io/transport-node', async () => (await import('../support/newest.ts')).newest('@nats-io/transport-node'))

const { versions, load } = await newestClients()

const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

describe('the clients of this file are the newest', () => {
  const imported = {
    ioredis: () => import('ioredis'),
    redis: () => import('redis'),
    pg: () => import('pg'),
    postgres: () => import('postgres'),
    amqplib: () => import('amqplib'),
    kafkajs: () => import('kafkajs'),
    '@nats-io/transport-node': () => import('@nats-io/transport-node'),
  } as const
  test.each(CLIENTS.map((name) => `${name} ${versions[name]}`))('%s', async (title) => {
    const name = CLIENTS.find((client) => title === `${client} ${versions[client]}`)!
    expect({ ...(await imported[name]()) }).toEqual({ ...(await load(name)) })
  })
})

/** Of the suite what goes through every call of a client; the rest is about us. */
const ROUND = [
  'every attribute and extension arrives',
  'bytes arrive, all 256 of them',
  'a batch of 1000 arrives whole',
  'what a session leaves unsettled comes again to the next',
  'what is done does not come again, to a new session neither',
  'what is dead does not come again, and is found with its reason',
]

function round(suite: Suite): void {
  const cases = suite.filter(({ name }) => ROUND.includes(name))
  test('all cases of the round are there', () => expect(cases.map(({ name }) => name)).toHaveLength(ROUND.length))
  runSuite(cases)
}

describeWith(['rabbitmq'], `rabbitmq: amqplib ${versions.amqplib}`, () => {
  round(brokerSuite(rabbitmqFactory('newest amqplib', () => service('rabbitmq').url)))
})

describeWith(['kafka'], `kafka: kafkajs ${versions.kafkajs}`, () => {
  round(brokerSuite(kafkaFactory('newest kafkajs', () => onServer(service('kafka').url))))
})

describeWith(['nats'], `nats: transport-node ${versions['@nats-io/transport-node']}`, () => {
  round(brokerSuite(natsFactory('newest nats', () => connecting(service('nats').url))))
})

const redisClients = [
  { title: `ioredis ${versions.ioredis}`, made: ioredis },
  { title: `node-redis ${versions.redis}`, made: nodeRedis },
]
for (const { title, made } of redisClients) {
  describeWith(['redis'], `redis: ${title}`, () => {
    const client = () => made(service('redis').url)
    round(brokerSuite(streamsFactory(title, client)))
    conformance(title, client)
  })
}

describeWith(
  ['redis'],
  `redis: ioredis ${versions.ioredis} and node-redis ${versions.redis} over several servers`,
  () => {
    const PUT = redisScript('put', "redis.call('SET', KEYS[1], ARGV[1])\nreturn redis.call('GET', KEYS[1])")

    test.each(['sentinel', 'cluster'])('%s: scripts and pipelines go to the master of their key', async (topology) => {
      const servers = topology === 'sentinel' ? await sentinel({ replicas: 1 }) : await cluster({ masters: 3 })
      for (const client of [servers.ioredis(), servers.nodeRedis()]) {
        const redis = await redisOf(client).connect({ timeout: 5000, name: 'waybill-test' })
        ends.push(() => redis.close())
        for (const key of ['a', 'b', 'c', 'd']) {
          expect(await redis.script(PUT, [key], [Buffer.from([0xff, 0])])).toEqual(Buffer.from([0xff, 0]))
          expect(await redis.pipeline([['strlen', key]], { key })).toEqual([2])
        }
      }
    })
  },
)

const Placed = event<{ n: number }>('order.placed')

const sqlClients = {
  [`pg ${versions.pg}`](url: string): Postgres {
    const pool = new pg.Pool({ connectionString: url, max: 6, application_name: 'newest' })
    ends.push(() => pool.end())
    return postgres({ pool }) as unknown as Postgres
  },
  [`postgres.js ${versions.postgres}`](url: string): Postgres {
    const sql = postgresJs(url, { max: 6, onnotice: () => {}, connection: { application_name: 'newest' } })
    ends.push(() => sql.end({ timeout: 1 }))
    return postgres({ pool: sql }) as unknown as Postgres
  },
}

describe.skipIf(without('postgres')).each(Object.entries(sqlClients))('postgres: %s', (_, open) => {
  test('events go from a transaction through a relay into a transaction, also past one that hangs', async () => {
    const database = await freshDatabase()
    ends.push(() => database.drop())
    const db = open(database.url)
    await db.migrate()
    await db.database.query('CREATE TABLE orders (n int PRIMARY KEY)')
    const broker = new InProcessBroker()
    let hung = false
    const router = new Router('billing').use(transactional(db)).on(Placed, async ({ data }, { tx }) => {
      if (data.n === 7 && !hung) {
        hung = true
        await sqlOf(tx).query('SELECT pg_sleep(3600)')
      }
      await sqlOf(tx).query('INSERT INTO orders VALUES ($1)', [data.n])
    })
    const retry = { attempts: 100, backoff: { min: 1, max: 1, jitter: 0 } }
    const consumer = await router.consume(broker.source('billing'), { concurrency: 4, timeout: 500, retry }).start()
    ends.push(() => consumer.stop())
    const relay = await new Relay({ from: db.outbox, to: broker }).start()
    ends.push(() => relay.stop())
    await db.withTransaction(async (tx) => {
      for (let n = 0; n < 100; n++) await db.outbox.enqueue(tx, Placed({ n }))
    })
    const one = async (text: string) => Number((await db.database.query(text)).rows[0]!['n'])
    await eventually('all are handled', async () => (await one('SELECT count(*) AS n FROM orders')) === 100)
    expect(hung).toBe(true)
    // The statement that hung was ended at the server, which needs the number of its session there.
    const left = `SELECT count(*) AS n FROM pg_stat_activity
      WHERE application_name = 'newest' AND query LIKE 'SELECT pg_sleep%' AND state = 'active'`
    await eventually('the server is rid of it', async () => (await one(left)) === 0)
  })
})
