import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import { redisStreams, type StreamsSource } from '../../../src/brokers/redis-streams/index.ts'
import { event, type Message, type RawMessage, systemClock } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { redis, redisOutbox } from '../../../src/redis/index.ts'
import { type RunningScript, runScript, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, freshDatabase, service } from '../../support/services.ts'
import { fresh, ioredis, NEVER } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const LONG = 3_600_000

/** What a pair needs of its store; `job` tells the children where it is. */
interface Store {
  readonly job: object
  enqueue(events: readonly Message[]): Promise<void>
  /** How many are in the outbox and not published. */
  pending(): Promise<number>
  /** How many messages have had an effect. */
  effects(): Promise<number>
  /** How often each has. */
  times(): Promise<ReadonlyMap<string, number>>
}

describeWith(['redis', 'postgres'], 'redis streams: processes are killed', () => {
  const url = () => service('redis').url
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  async function onPostgres(): Promise<Store> {
    const database = await freshDatabase()
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool })
    await db.migrate()
    await pool.query('CREATE TABLE effects (event_id text NOT NULL)')
    const count = async (sql: string) => Number((await pool.query(`SELECT count(*) AS n FROM ${sql}`)).rows[0].n)
    return {
      job: { database: database.url },
      enqueue: async (events) => void (await db.withTransaction((tx) => db.outbox.enqueue(tx, events))),
      pending: () => count(`outbox WHERE state <> 'published'`),
      effects: () => count('effects'),
      async times() {
        const { rows } = await pool.query('SELECT event_id, count(*)::int AS n FROM effects GROUP BY event_id')
        return new Map(rows.map(({ event_id, n }) => [event_id, n]))
      },
    }
  }

  function onRedis(): Store {
    const tag = fresh('kills')
    const db = redis({ client: ioredis(url()), tag })
    ends.push(() => db.stop())
    const outbox = redisOutbox({ on: db })
    const raw = ioredis(url())
    ends.push(() => raw.disconnect())
    return {
      job: { tag },
      enqueue: async (events) => void (await db.withTransaction((tx) => outbox.enqueue(tx, events))),
      async pending() {
        const { states } = await outbox.admin.stats()
        const all = Object.values(states).reduce((sum, { count }) => sum + count, 0)
        return all - states.published.count
      },
      effects: () => raw.hlen(db.key('effects')),
      async times() {
        const found = Object.entries(await raw.hgetall(db.key('effects')))
        return new Map(found.map(([id, times]) => [id, Number(times)]))
      },
    }
  }

  /** A stream for the store, and processes that read and write it. */
  function streamOf(store: Store) {
    const stream = fresh()
    const broker = redisStreams({ client: ioredis(url()) })
    ends.push(() => broker.close())
    const publisher = broker.publisher({ stream })
    ends.push(() => publisher.close!())
    const source = broker.source({ stream, group: 'billing' })
    const child = async (name: string, job: object = {}): Promise<RunningScript> => {
      const full = { url: url(), stream, ...store.job, ...job }
      const script = new URL(`./${name}.ts`, import.meta.url)
      const running = runScript({ script, env: { JOB: JSON.stringify(full) }, timeout: LONG })
      ends.push(async () => {
        running.kill()
        await running.finished.catch(() => {})
      })
      await running.line('ready', 120_000)
      return running
    }
    return { publisher, source, child }
  }

  /** Every event has had its effect, once, and nothing is left. */
  async function verify(store: Store, source: StreamsSource, sent: readonly Message[]): Promise<void> {
    const times = await store.times()
    expect([...times].filter(([, n]) => n !== 1)).toEqual([])
    expect(sent.filter(({ id }) => !times.has(id)).map(({ id }) => id)).toEqual([])
    expect(times.size).toBe(sent.length)
    expect((await source.stats())[0]).toMatchObject({ lag: 0, inHand: 0, waiting: 0, dead: 0 })
  }

  test('a consumer is killed again and again, inbox on: nothing lost, every effect once', {
    timeout: LONG,
  }, async () => {
    const total = scale({ test: 1000, full: 5000, torture: 50_000 })
    const kills = scale({ test: 2, full: 10, torture: 200 })
    const random = seededRandom(11)
    const store = await onPostgres()
    const { publisher, source, child } = streamOf(store)
    const sent = Array.from({ length: total }, (_, n) => Placed({ n }, { key: `key ${n % 50}` }))
    const outcomes = await publisher.publish(sent as Message[] as RawMessage[], NEVER)
    expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
    for (let kill = 0; kill < kills; kill++) {
      const victim = await child('billing-child')
      const before = await store.effects()
      // Not so many that there would be nothing left for the last ones.
      const room = (total - before) / (kills - kill)
      const after = Math.min(50 + Math.floor(random.next() * 450), Math.max(50, Math.floor(room * 0.8)))
      await until('it has done some', async () => (await store.effects()) >= Math.min(before + after, total), 120_000)
      victim.kill()
      await victim.finished
    }
    const last = await child('billing-child')
    await until('all is done', async () => (await store.effects()) >= total, 600_000)
    await until('all is settled', () => isSettled(source))
    last.kill('SIGTERM')
    expect((await last.finished).code).toBe(0)
    await verify(store, source, sent)
  })

  const pairs = [
    ['PostgreSQL (owner)', 'owner', onPostgres],
    ['PostgreSQL (lease)', 'lease', onPostgres],
    ['Redis (scripts)', 'auto', onRedis],
  ] as const
  test.each(pairs)(
    'outbox in %s → relay → Redis Streams → consumer with inbox, both killed',
    {
      timeout: LONG,
    },
    async (_, reader, make) => {
      const rounds = scale({ test: 2, full: 4, torture: 40 })
      const random = seededRandom(21)
      const store = await make()
      const { source, child } = streamOf(store)
      const sent: Message[] = []
      let writing = true
      const writer = (async () => {
        while (writing) {
          // Not faster than they are handled: the test is about kills, not about a backlog.
          if (sent.length > (await store.effects()) + 500) {
            await systemClock.sleep(20)
            continue
          }
          const events = Array.from({ length: 20 }, () =>
            Placed({ n: sent.length }, { key: `key ${sent.length % 20}` }),
          )
          await store.enqueue(events)
          sent.push(...events)
        }
      })()
      let relay = await child('relay-child', { reader })
      let billing = await child('billing-child')
      for (let round = 0; round < rounds; round++) {
        const before = await store.effects()
        const after = 50 + Math.floor(random.next() * 450)
        await until('some are done', async () => (await store.effects()) >= before + after, 120_000)
        const which = random.next()
        if (which < 0.7) {
          relay.kill()
          await relay.finished
          relay = await child('relay-child', { reader })
        }
        if (which > 0.3) {
          billing.kill()
          await billing.finished
          billing = await child('billing-child')
        }
      }
      writing = false
      await writer
      await until('all is published', async () => (await store.pending()) === 0, 300_000)
      await until(`all ${sent.length} are done`, async () => (await store.effects()) >= sent.length, 300_000)
      await until('all is settled', () => isSettled(source))
      for (const one of [relay, billing]) {
        one.kill('SIGTERM')
        expect((await one.finished).code).toBe(0)
      }
      await verify(store, source, sent)
    },
  )
})

async function isSettled(source: StreamsSource): Promise<boolean> {
  const { lag, inHand, waiting } = (await source.stats())[0]!
  return lag + inHand + waiting === 0
}

async function until(what: string, condition: () => Promise<boolean>, limit = 60_000): Promise<void> {
  const end = performance.now() + limit
  while (!(await condition())) {
    if (performance.now() > end) throw new Error(`within ${limit} ms: ${what}`)
    await systemClock.sleep(20)
  }
}
