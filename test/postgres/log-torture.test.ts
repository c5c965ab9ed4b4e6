import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { afterAll, expect, test } from 'vitest'
import { Cleaner, Relay } from '../../src/outbox/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector, seededRandom } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { Placed } from './support.ts'

const SECONDS = scale({ test: 4, full: 15, torture: 200 })
const WRITERS = scale({ test: 8, full: 12, torture: 16 })

const cleanups: (() => Promise<unknown>)[] = []
afterAll(async () => {
  for (const cleanup of cleanups.reverse()) await cleanup()
})

const SERVERS = scale<readonly string[]>({
  test: ['postgres'],
  full: ['postgres', 'postgres15'],
  torture: ['postgres', 'postgres15'],
})

describeWith([...SERVERS], 'a log under writers that roll back, prepare, linger and overtake each other', () => {
  test.each(SERVERS)(
    'gives every committed event once and in order, while events are relayed, archived and replayed, on %s',
    {
      timeout: SECONDS * 1000 + 60_000,
    },
    async (on) => {
      const database: FreshDatabase = await freshDatabase(on)
      cleanups.push(() => database.drop())
      const pool = new pg.Pool({ connectionString: database.url, max: WRITERS + 12 })
      pool.on('error', () => {})
      cleanups.push(() => pool.end())
      // PREPARE TRANSACTION does not go with NOTIFY.
      const db = postgres({ pool, outbox: { log: true, wake: 'off', retention: 0 } })
      await db.migrate()
      const seed = Date.now() % 1_000_000
      const until = Date.now() + SECONDS * 1000
      const running = () => Date.now() < until

      const read: string[] = []
      const progress = setInterval(() => {
        const left = Math.max(0, Math.ceil((until - Date.now()) / 1000))
        console.log(`log on ${on}: ${read.length} events read, ${left} s left (seed ${seed})`)
      }, 20_000)
      cleanups.push(async () => clearInterval(progress))
      const writers = Array.from({ length: WRITERS }, (_, n) => write(pool, db, randomOf(seed + n), n, running))
      const relay = new Relay({ from: db.outbox, to: collector(), poll: '20ms', maxPoll: '20ms', lease: '5s' })
      const cleaner = new Cleaner({ of: db.outbox.admin, every: '50ms', retention: 0 })
      await Promise.all([relay.start(), cleaner.start()])
      const replaying = replay(db, running)
      let over = false
      const given = follow(db, read, () => over)
      const plain = plainCursor(pool, () => over)

      await Promise.all(writers)
      await replaying
      over = true
      const [, seen] = await Promise.all([given, plain])
      clearInterval(progress)
      await Promise.all([relay.stop(), cleaner.stop()])

      const { rows } = await pool.query<{ sequence: string }>(
        'SELECT sequence FROM outbox UNION ALL SELECT sequence FROM outbox_archive ORDER BY 1',
      )
      const committed = rows.map(({ sequence }) => sequence)
      expect(new Set(committed).size, `seed ${seed}: no event is in both`).toBe(committed.length)
      const known = new Set(read)
      const missed = committed.filter((sequence) => !known.has(sequence))
      expect(missed, `seed ${seed}: nothing is skipped`).toEqual([])
      expect(read, `seed ${seed}: each once, in order`).toEqual(committed)
      // Otherwise the test shows nothing: the writers were too tame.
      expect(seen.size, 'a cursor without a bound misses some').toBeLessThan(committed.length)
      expect(committed.length).toBeGreaterThan(SECONDS * 10)
    },
  )
})

function randomOf(seed: number): () => number {
  const random = seededRandom(seed)
  return () => random.integer(1_000_000) / 1_000_000
}

type Db = ReturnType<typeof postgres<pg.PoolClient>>

/** One writer: savepoints, rollbacks, prepared transactions, and some that draw a number and then take their time. */
async function write(pool: pg.Pool, db: Db, random: () => number, n: number, running: () => boolean): Promise<void> {
  const client = await pool.connect()
  try {
    for (let turn = 0; running(); turn++) {
      const key = `k${Math.floor(random() * 5)}`
      await client.query('BEGIN')
      await db.outbox.enqueue(client, Placed({ n: turn }), { key })
      if (random() < 0.3) {
        await client.query('SAVEPOINT s')
        await db.outbox.enqueue(client, [Placed({ n: turn }), Placed({ n: turn })], { key })
        if (random() < 0.5) await client.query('ROLLBACK TO SAVEPOINT s')
      }
      if (random() < 0.4) await sleep(random() * (random() < 0.1 ? 200 : 15))
      const end = random()
      if (end < 0.2) await client.query('ROLLBACK')
      else if (end < 0.3) await prepared(client, `t${n}_${turn}_${process.pid}_${Date.now()}`, random)
      else await client.query('COMMIT')
      if (random() < 0.3) await sleep(random() * 5)
    }
  } finally {
    client.release()
  }
}

async function prepared(client: pg.PoolClient, name: string, random: () => number): Promise<void> {
  try {
    await client.query(`PREPARE TRANSACTION '${name}'`)
  } catch {
    // The server has only so many places; others of the run may have them all.
    await client.query('ROLLBACK')
    return
  }
  await sleep(random() * 30)
  await client.query(`${random() < 0.7 ? 'COMMIT' : 'ROLLBACK'} PREPARED '${name}'`)
}

/** What the log gives is added to `read`, until everything is over and it gives no more. */
async function follow(db: Db, read: string[], over: () => boolean): Promise<void> {
  for (let after = 0n; ; ) {
    const last = over()
    const { events, upTo } = await db.log.read(after, 50)
    read.push(...events.map(({ position }) => String(position)))
    if (upTo === after) {
      // A settlement may hold it back for a moment.
      if (last && after === (await db.log.head()).position) return
      await sleep(2)
    }
    after = upTo
  }
}

/** The same without a bound: what many readers of such tables do. */
async function plainCursor(pool: pg.Pool, over: () => boolean): Promise<Set<string>> {
  const seen = new Set<string>()
  for (let after = '0'; ; ) {
    const last = over()
    const { rows } = await pool.query<{ sequence: string }>(
      `SELECT sequence FROM outbox WHERE sequence > $1 UNION ALL SELECT sequence FROM outbox_archive WHERE sequence > $1
       ORDER BY 1 LIMIT 50`,
      [after],
    )
    for (const { sequence } of rows) seen.add(sequence)
    after = rows.at(-1)?.sequence ?? after
    if (rows.length > 0) continue
    if (last) return seen
    await sleep(2)
  }
}

async function replay(db: Db, running: () => boolean): Promise<void> {
  while (running()) {
    await sleep(300)
    await db.outbox.admin.replay({ key: 'k1' }, { by: 'test', note: 'torture' }, { archive: true })
  }
}
