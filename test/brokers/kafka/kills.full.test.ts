import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import { encodeData, event, type Message } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { type RunningScript, runScript, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, freshDatabase, service } from '../../support/services.ts'
import { fresh, message, NEVER, onServer, QUICK, until } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const LONG = 3_600_000

describeWith(['kafka', 'postgres'], 'kafka: processes are killed', () => {
  const url = () => service('kafka').url
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  function running(name: string, options: { args?: string[]; job?: object }): RunningScript {
    const script = new URL(`./${name}.ts`, import.meta.url)
    const env = { JOB: JSON.stringify(options.job ?? {}) }
    const child = runScript({ script, args: options.args ?? [], env, timeout: LONG })
    ends.push(async () => {
      child.kill()
      await child.finished.catch(() => {})
    })
    return child
  }

  /** A topic and a group for it. */
  async function place() {
    const [topic, group] = [fresh(), fresh('g')]
    const broker = onServer(url())
    const source = broker.source({ topic, group, ...QUICK })
    await (await source.open(NEVER)).close()
    const publisher = broker.publisher({ topic })
    ends.push(async () => {
      await publisher.close!()
      await broker.close()
    })
    const settled = async () => (await source.stats()).every(({ lag }) => lag === 0)
    return { topic, group, source, publisher, settled }
  }

  /** With a database that has outbox, inbox and effects. */
  async function world() {
    const database = await freshDatabase()
    ends.push(() => database.drop())
    const pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
    ends.push(() => pool.end())
    const db = postgres({ pool })
    await db.migrate()
    await pool.query('CREATE TABLE effects (at bigserial, event_id text NOT NULL, key text, n int)')
    const made = await place()
    const count = async (sql: string) => Number((await pool.query(`SELECT count(*) AS n FROM ${sql}`)).rows[0].n)
    const child = async (name: string, job: object): Promise<RunningScript> => {
      const { topic, group } = made
      const one = running(name, { job: { url: url(), topic, group, database: database.url, ...job } })
      await one.line('ready', 60_000)
      return one
    }
    return { ...made, pool, db, count, child, effects: () => count('effects') }
  }

  /** Every event has had its effect, once, and those of a key in order. */
  async function verify(pool: pg.Pool, sent: readonly Message[], ordered = true): Promise<void> {
    const { rows } = await pool.query<{ event_id: string; key: string; n: number }>(
      'SELECT event_id, key, n FROM effects ORDER BY at',
    )
    const had = new Set(rows.map(({ event_id }) => event_id))
    expect(rows.length, 'each once').toBe(had.size)
    expect(sent.filter(({ id }) => !had.has(id)).map(({ id }) => id)).toEqual([])
    expect(had.size).toBe(sent.length)
    if (!ordered) return
    for (const key of new Set(rows.map((row) => row.key))) {
      const numbers = rows.filter((row) => row.key === key).map(({ n }) => n)
      expect(numbers).toEqual([...numbers].sort((a, b) => a - b))
    }
  }

  test('a consumer is killed again and again, inbox on: nothing lost, effects once, order per key', {
    timeout: LONG,
  }, async () => {
    const total = scale({ test: 1000, full: 5000, torture: 50_000 })
    const kills = scale({ test: 2, full: 10, torture: 200 })
    const random = seededRandom(31)
    const { pool, publisher, source, settled, effects, child } = await world()
    const sent = Array.from({ length: total }, (_, n) => Placed({ n }, { key: `key ${n % 50}` }))
    for (let from = 0; from < total; from += 500) {
      const outcomes = await publisher.publish(sent.slice(from, from + 500).map(encodeData), NEVER)
      expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
    }
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
    await until('all is committed', settled)
    last.kill('SIGTERM')
    expect((await last.finished).code).toBe(0)
    expect(await source.deadLetters()).toEqual([])
    await verify(pool, sent)
  })

  for (const reader of ['owner', 'lease'] as const) {
    test(`outbox in PostgreSQL (${reader}) → relay → Kafka → consumer with inbox, both killed`, {
      timeout: LONG,
    }, async () => {
      const rounds = scale({ test: 2, full: 4, torture: 40 })
      const random = seededRandom(reader === 'owner' ? 41 : 42)
      const { pool, db, source, settled, effects, count, child } = await world()
      const sent: Message[] = []
      let writing = true
      const writer = (async () => {
        while (writing) {
          const events = Array.from({ length: 20 }, (_, i) => {
            const n = sent.length + i
            return Placed({ n }, { key: `key ${n % 20}` })
          })
          await db.withTransaction((tx) => db.outbox.enqueue(tx, events))
          sent.push(...events)
          // Not faster than it can flow: what is killed must have something to do afterwards, not everything.
          await until('it flows', async () => sent.length < (await effects()) + 2000, LONG)
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
      await until('all is done', async () => (await effects()) >= sent.length, 300_000)
      await until('all is committed', settled)
      for (const one of [relay, billing]) {
        one.kill('SIGTERM')
        expect((await one.finished).code).toBe(0)
      }
      expect(await source.deadLetters()).toEqual([])
      // The lease reader keeps no order.
      await verify(pool, sent, reader === 'owner')
    })
  }

  test('a message that kills whoever touches it becomes a dead letter, and the others are handled', {
    timeout: LONG,
  }, async () => {
    const { topic, group, source, publisher, settled } = await place()
    const sent = Array.from({ length: 30 }, (_, n) => message('{}', { id: `n${n}`, key: 'k' }))
    await publisher.publish(sent, NEVER)
    let deaths = 0
    for (let alive = false; !alive; ) {
      const victim = running('consumer-script', { args: [url(), topic, group, '1', 'n11'] })
      const died = victim.finished.then(() => true)
      alive = !(await Promise.race([died, until('all is committed', settled, 120_000).then(() => false)]))
      if (!alive) deaths++
      expect(deaths, 'found before long').toBeLessThan(8)
    }
    const letters = await source.deadLetters()
    expect(letters.map(({ message: { id } = {}, reason }) => [id, reason])).toEqual([
      ['n11', expect.stringMatching(/^2 attempts: .*CRASHED/)],
    ])
    // Once among others, and then alone as often as it may.
    expect(deaths).toBeLessThanOrEqual(4)
  })
})
