import fc from 'fast-check'
import pg from 'pg'
import { afterEach, expect, test } from 'vitest'
import type { Message } from '../../src/index.ts'
import { Cleaner, Relay } from '../../src/outbox/index.ts'
import type { Term } from '../../src/outbox/leadership.ts'
import { postgres } from '../../src/postgres/index.ts'
import { Projector } from '../../src/projection/index.ts'
import { collector } from '../../src/testing/index.ts'
import { scale } from '../support/scale.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { changed, created, fold, itemAdded, orders, renamed } from './shop.ts'

/** What may happen, in any order. Numbers choose among what there is. */
type Step =
  | {
      kind: 'write'
      events: readonly [kind: number, order: number, value: number][]
      end: 'commit' | 'rollback' | 'open'
    }
  | { kind: 'end'; which: number; commit: boolean }
  | {
      kind: 'again' | 'project' | 'takeover' | 'restart' | 'unknown' | 'known' | 'relay' | 'clean' | 'replay'
      which: number
    }

const number = fc.nat(3)
const step: fc.Arbitrary<Step> = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('write' as const),
      events: fc.array(fc.tuple(number, number, fc.nat(9)), { minLength: 1, maxLength: 4 }),
      end: fc.constantFrom('commit' as const, 'commit' as const, 'rollback' as const, 'open' as const),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('end' as const), which: number, commit: fc.boolean() }) },
  {
    weight: 7,
    arbitrary: fc.record({
      kind: fc.constantFrom(
        ...([
          'again',
          'project',
          'project',
          'project',
          'takeover',
          'restart',
          'unknown',
          'known',
          'relay',
          'clean',
        ] as const),
        'replay' as const,
      ),
      which: number,
    }),
  },
)

const SIZE = scale({
  test: { numRuns: 8, maxLength: 30 },
  full: { numRuns: 40, maxLength: 60 },
  torture: { numRuns: 1000, maxLength: 120 },
})
const LONG = { timeout: scale({ test: 60_000, full: 300_000, torture: 3_600_000 }) }

const SERVERS = scale<readonly string[]>({
  test: ['postgres'],
  full: ['postgres', 'postgres15'],
  torture: ['postgres', 'postgres15'],
})

describeWith([...SERVERS], 'a view is the fold of the committed history', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  const begin = async (on: string) => {
    database = await freshDatabase(on)
    pool = new pg.Pool({ connectionString: database.url, max: 20 })
    pool.on('error', () => {})
  }
  afterEach(async () => {
    await pool.end()
    await database.drop()
  })

  let made = 0
  test.each(SERVERS)(
    'on %s: whatever is created, changed and renamed, rolled back, left open, enqueued twice, replayed, archived or parked, by whichever projector',
    LONG,
    async (on) => {
      await begin(on)
      const { numRuns, maxLength } = SIZE
      await fc.assert(
        fc.asyncProperty(fc.array(step, { maxLength, size: 'max' }), (steps) => play(steps, ++made)),
        { numRuns },
      )
    },
  )

  async function play(steps: readonly Step[], run: number): Promise<void> {
    const outbox = { table: `outbox_${run}`, log: true, wake: 'off', retention: 0, dedup: true } as const
    const db = postgres({ pool, outbox, projections: true })
    await db.migrate()
    const table = `order_list_view_${run}`
    const backoff = { min: 0, max: 0, jitter: 0 }
    /** What the other service knows: a rename is there with its commit. */
    const names = new Map<string, string>()
    const unknown = new Set<string>()
    const nameOf = (buyer: string) => names.get(buyer) ?? `name of ${buyer}`
    const view = orders(
      (buyer) => {
        if (unknown.has(buyer)) throw Object.assign(new Error('no such buyer'), { code: '22023', severity: 'ERROR' })
        return nameOf(buyer)
      },
      { table, version: run },
    )
    const options = { store: db, log: db.log, projections: [view], batch: 3, parked: { backoff } }
    let projector = new Projector(options)
    const zombies: Projector<pg.PoolClient>[] = []
    const relay = new Relay({ from: db.outbox, to: collector(), lease: '10s' })
    const cleaner = new Cleaner({ of: db.outbox.admin, every: '1m', retention: 0 })
    const open: { client: pg.PoolClient; renames: Map<string, string> }[] = []
    const written: Message[] = []
    const audit = { by: 'test', note: 'again' }

    const eventOf = (
      [kind, order, value]: readonly [number, number, number],
      renames: Map<string, string>,
    ): Message => {
      const id = `o${order}`
      const buyer = `b${order % 2}`
      if (kind === 0) return created(id, { buyerId: buyer, status: `n${value}`, amount: value })
      if (kind === 1) return changed(id, `s${value}`)
      // Two renames of one user at once: the lock of the user's own row lets one go after the other.
      if (kind === 2 || open.some((one) => one.renames.has(buyer))) return itemAdded(id, value)
      renames.set(buyer, `${buyer} as ${value}`)
      return renamed(buyer, `${buyer} as ${value}`)
    }
    const ended = async ({ client, renames }: (typeof open)[number], commit: boolean) => {
      await client.query(commit ? 'COMMIT' : 'ROLLBACK')
      client.release()
      if (commit) for (const [buyer, name] of renames) names.set(buyer, name)
    }
    const settle = async () => {
      while (open.length > 0) await ended(open.shift()!, true)
    }

    try {
      for (const one of steps) {
        switch (one.kind) {
          case 'write': {
            const client = await pool.connect()
            await client.query('BEGIN')
            const renames = new Map<string, string>()
            const events = one.events.map((about) => eventOf(about, renames))
            await db.outbox.enqueue(client, events)
            const transaction = { client, renames }
            if (one.end === 'open' && open.length < 5) open.push(transaction)
            else await ended(transaction, one.end !== 'rollback')
            if (one.end === 'commit') written.push(...events)
            break
          }
          case 'end': {
            const [transaction] = open.splice(one.which % Math.max(1, open.length), 1)
            if (transaction !== undefined) await ended(transaction, one.commit)
            break
          }
          case 'again': {
            // The same id: it is in the log already. What was cleaned is forgotten at once, and would be another event.
            const { rows } = await pool.query(`SELECT event_id AS id FROM outbox_${run}`)
            const known = written.filter((event) => rows.some(({ id }) => id === event.id))
            if (known.length > 0)
              await db.withTransaction((tx) => db.outbox.enqueue(tx, known[one.which % known.length]!))
            break
          }
          case 'project':
            await projector.runOnce()
            break
          case 'takeover': {
            // Its right is another's from now on, and it does not know.
            const leadership = db.leadership(`projection/order_list_view/${run}`)
            const [held] = await leadership.terms()
            const { epoch } = (await db.projections.load(view)) ?? {}
            if (held !== undefined) await leadership.release(held.holder, { shard: 0, epoch } as Term)
            zombies.push(projector)
            projector = new Projector(options)
            await projector.runOnce()
            for (const zombie of zombies.slice(-1)) await zombie.runOnce()
            break
          }
          case 'restart':
            await projector.stop()
            projector = new Projector(options)
            break
          case 'unknown':
            unknown.add(`b${one.which % 2}`)
            break
          case 'known':
            unknown.delete(`b${one.which % 2}`)
            break
          case 'relay':
            await relay.runOnce()
            break
          case 'clean':
            await cleaner.runOnce()
            break
          case 'replay':
            await db.outbox.admin.replay({ key: `o${one.which}` }, audit, { archive: true })
            break
        }
      }
      await settle()
      unknown.clear()
      const { position } = await db.log.head()
      // Parked events are looked at once a second.
      const until = Date.now() + 20_000
      for (;;) {
        await projector.runOnce()
        const checkpoint = await db.projections.load(view)
        if (checkpoint?.position === position && checkpoint.parked === 0) break
        if (position === 0n || Date.now() > until) {
          expect(checkpoint, 'nothing stalls').toMatchObject({ position, parked: 0 })
          break
        }
        const parked = await db.projections.parked({ projection: view }, {})
        if (parked.length > 0)
          await db.projections.retry(
            view,
            parked.map((event) => event.position),
            audit,
          )
      }
      const { rows } = await pool.query(
        `SELECT order_id, buyer_id, buyer_name, status, amount::int, item_count FROM ${table} ORDER BY 1`,
      )
      const { rows: history } = await pool.query(
        `SELECT event_type AS type, payload AS data FROM (SELECT event_type, payload, sequence FROM outbox_${run}
          UNION ALL SELECT event_type, payload, sequence FROM outbox_${run}_archive) AS log ORDER BY sequence`,
      )
      expect(rows).toEqual(fold(history, nameOf))
    } finally {
      await settle()
      for (const one of [projector, ...zombies]) await one.stop()
      await relay.stop()
    }
  }
})
