import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import type { NatsPublisher } from '../../../src/brokers/nats/index.ts'
import { event, type Message, type RawMessage, systemClock } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type RunningScript, runScript, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, freshDatabase, service } from '../../support/services.ts'
import { broker, connecting, NEVER, until } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const LONG = 3_600_000

describeWith(['nats', 'postgres'], 'nats: processes are killed', () => {
  const url = () => service('nats').url
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  /** A database with outbox, inbox and effects, and a stream with a consumer for it. */
  async function world() {
    const database = await freshDatabase()
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool })
    await db.migrate()
    await pool.query('CREATE TABLE effects (event_id text NOT NULL)')
    const mine = broker(connecting(url()))
    ends.push(() => mine.close())
    const { stream } = mine
    const source = mine.source({ group: 'billing', create: true, ackWait: '2s' })
    await (await source.open()).close()
    const publisher = mine.publisher({ subject: `${stream}.order.placed` })
    ends.push(() => publisher.close())
    const count = async (sql: string) => Number((await pool.query(`SELECT count(*) AS n FROM ${sql}`)).rows[0].n)
    const child = async (name: string, job: object): Promise<RunningScript> => {
      const full = { url: url(), stream, database: database.url, ...job }
      const script = new URL(`./${name}.ts`, import.meta.url)
      const running = runScript({ script, env: { JOB: JSON.stringify(full) }, timeout: LONG })
      ends.push(async () => {
        running.kill()
        await running.finished.catch(() => {})
      })
      await running.line('ready', 60_000)
      return running
    }
    return { pool, db, publisher, source, count, child, effects: () => count('effects') }
  }

  /** Every event has had its effect, once. */
  async function verify(pool: pg.Pool, sent: readonly Message[]): Promise<void> {
    const { rows } = await pool.query<{ event_id: string; n: string }>(
      'SELECT event_id, count(*) AS n FROM effects GROUP BY event_id',
    )
    expect(rows.filter(({ n }) => Number(n) !== 1)).toEqual([])
    const had = new Set(rows.map(({ event_id }) => event_id))
    expect(sent.filter(({ id }) => !had.has(id)).map(({ id }) => id)).toEqual([])
    expect(had.size).toBe(sent.length)
  }

  test('a consumer is killed again and again, inbox on: nothing lost, every effect once', {
    timeout: LONG,
  }, async () => {
    const total = scale({ test: 1000, full: 5000, torture: 50_000 })
    const kills = scale({ test: 2, full: 10, torture: 200 })
    const random = seededRandom(11)
    const { pool, publisher, source, effects, child } = await world()
    const sent = Array.from({ length: total }, (_, n) => Placed({ n }, { key: `key ${n % 50}` }))
    await publish(publisher, sent)
    for (let kill = 0; kill < kills; kill++) {
      const victim = await child('billing-child', {})
      const before = await effects()
      // Not so many that there would be nothing left for the last ones.
      const room = (total - before) / (kills - kill)
      const after = Math.min(50 + Math.floor(random.next() * 450), Math.max(50, Math.floor(room * 0.8)))
      await until('it has done some', async () => (await effects()) >= Math.min(before + after, total), 120_000)
      victim.kill()
      await victim.finished
    }
    const last = await child('billing-child', {})
    await until('all is done', async () => (await effects()) >= total, 600_000)
    await until('all is settled', async () => settledIn(await source.stats()))
    last.kill('SIGTERM')
    expect((await last.finished).code).toBe(0)
    expect(await source.stats()).toMatchObject({ lag: 0, pending: 0, dead: 0 })
    await verify(pool, sent)
  })

  for (const reader of ['owner', 'lease'] as const) {
    test(`outbox in PostgreSQL (${reader}) → relay → NATS → consumer with inbox, both killed`, {
      timeout: LONG,
    }, async () => {
      const rounds = scale({ test: 2, full: 4, torture: 40 })
      const random = seededRandom(reader === 'owner' ? 21 : 22)
      const { pool, db, source, effects, count, child } = await world()
      const sent: Message[] = []
      let writing = true
      const writer = (async () => {
        while (writing) {
          // Not faster than they are handled: the test is about kills, not about a backlog.
          if (sent.length > (await effects()) + 500) {
            await systemClock.sleep(20)
            continue
          }
          const events = Array.from({ length: 20 }, () =>
            Placed({ n: sent.length }, { key: `key ${sent.length % 20}` }),
          )
          await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
          sent.push(...events)
        }
      })()
      let relay = await child('relay-child', { reader })
      let billing = await child('billing-child', {})
      for (let round = 0; round < rounds; round++) {
        const before = await effects()
        const after = 50 + Math.floor(random.next() * 450)
        await until('some are done', async () => (await effects()) >= before + after, 120_000)
        const which = random.next()
        if (which < 0.7) {
          relay.kill()
          await relay.finished
          relay = await child('relay-child', { reader })
        }
        if (which > 0.3) {
          billing.kill()
          await billing.finished
          billing = await child('billing-child', {})
        }
      }
      writing = false
      await writer
      await until('all is published', async () => (await count(`outbox WHERE state <> 'published'`)) === 0, 300_000)
      await until(`all ${sent.length} are done`, async () => (await effects()) >= sent.length, 300_000)
      await until('all is settled', async () => settledIn(await source.stats()))
      for (const one of [relay, billing]) {
        one.kill('SIGTERM')
        expect((await one.finished).code).toBe(0)
      }
      expect(await source.stats()).toMatchObject({ lag: 0, pending: 0, dead: 0 })
      await verify(pool, sent)
    })
  }
})

function settledIn({ lag, pending }: { lag: number; pending: number }): boolean {
  return lag + pending === 0
}

async function publish(publisher: NatsPublisher, messages: readonly Message[]): Promise<void> {
  const outcomes = await publisher.publish(messages as RawMessage[], NEVER)
  expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
}
