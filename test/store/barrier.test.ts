import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { PGlite } from '@electric-sql/pglite'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { event, type Message, Reject, Router, transactional } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { type Postgres, postgres } from '../../src/postgres/index.ts'
import { saga, sagaReplies } from '../../src/saga/index.ts'
import { outgoing } from '../../src/saga/outgoing.ts'
import type { BarrierFunction, UnitOfWork } from '../../src/store/index.ts'
import { freshPGlite } from '../support/pglite.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'

const Ship = event<{ order: string }>('ship.wanted')
const Cancel = event<{ order: string }>('ship.cancel')
const Shipped = event<{ parcel: number }>('ship.done')
const Cancelled = event<{ ran: boolean }>('ship.cancelled')
const Weighed = event<{ grams: number }>('parcel.weighed')

const shipping = saga<{ id: string }>('order', { version: 1 }).request('ship', {
  send: (c) => Ship({ order: c.input.id }),
  reply: Shipped,
  undo: (c) => Cancel({ order: c.input.id }),
  undone: Cancelled,
  unknown: 'undo',
})

/** A request of a saga and the undo of it, as they are sent. */
async function messages(id: string = uuidv7(), type = 'order'): Promise<{ id: string; run: Message; undo: Message }> {
  const about = { id, type, input: { id: 'A' }, tenant: undefined, traceparent: undefined }
  const begun = { id, type, status: 'running', held: undefined, error: undefined, steps: [] } as const
  const first = await outgoing(shipping, about, begun, [
    { type: 'Intended', step: 'ship' },
    { type: 'Sent', step: 'ship' },
  ])
  const second = await outgoing(shipping, about, first.state, [
    { type: 'Undoing', step: 'ship' },
    { type: 'Sent', step: 'ship' },
  ])
  return { id, run: first.messages[0]!, undo: second.messages[0]! }
}

type Db = Pick<UnitOfWork<never>, 'withTransaction'> & {
  barrier(tx: never, message: Message, fn: BarrierFunction): Promise<readonly Message[]>
}

function suite(makes: () => Db) {
  let db: Db
  let calls: string[]
  beforeEach(() => {
    db = makes()
    calls = []
  })
  const enter = (message: Message, fn?: BarrierFunction) =>
    db.withTransaction((tx) =>
      db.barrier(
        tx,
        message,
        fn ??
          (({ ran }) => {
            const undoes = message.type === 'ship.cancel'
            calls.push(undoes ? `undo ${ran ? 'after a run' : 'without a run'}` : 'run')
            return undoes ? Cancelled({ ran }) : [Weighed({ grams: 3 }), Shipped({ parcel: 7 })]
          }),
      ),
    )

  test('a repeated run does nothing and returns the replies again, under another id; other events were told once', async () => {
    const { run } = await messages()
    const [, first] = await enter(run)
    const again = await enter(run.with({ id: uuidv7() }))
    expect(calls).toEqual(['run'])
    expect(again.map(({ type }) => type)).toEqual(['ship.done'])
    expect((await Shipped.decode(again[0]!)).data).toEqual({ parcel: 7 })
    expect(again[0]!.id).not.toBe(first!.id)
  })

  test('an undo after its run is told that it ran; a second one does nothing and confirms again', async () => {
    const { run, undo } = await messages()
    await enter(run)
    await enter(undo)
    const again = await enter(undo.with({ id: uuidv7(), extensions: { sagaundo: 2 } }))
    expect(calls).toEqual(['run', 'undo after a run'])
    expect(again.map(({ type }) => type)).toEqual(['ship.cancelled'])
  })

  test('an undo without a run leaves a tombstone and is called all the same; the run after it is refused', async () => {
    const { run, undo } = await messages()
    await enter(undo)
    expect(await enter(run)).toEqual([])
    expect(calls).toEqual(['undo without a run'])
  })

  test('a run after it was undone is refused, although it ran', async () => {
    const { run, undo } = await messages()
    await enter(run)
    await enter(undo)
    expect(await enter(run)).toEqual([])
    expect(calls).toEqual(['run', 'undo after a run'])
  })

  test('a run that was rolled back leaves no record: it may run again, and its undo has not seen it', async () => {
    const { run, undo } = await messages()
    const failing = enter(run, () => {
      throw new Reject('no')
    })
    await expect(failing).rejects.toThrow('no')
    await enter(undo)
    expect(calls).toEqual(['undo without a run'])
    const other = await messages()
    await enter(other.run, () => Promise.reject(new Error('once'))).catch(() => {})
    await enter(other.run)
    expect(calls).toContain('run')
  })

  test('sagas of two services may have the id of one order, and steps of one name: each has its own work', async () => {
    const { id, run } = await messages()
    const other = await messages(id, 'return')
    await enter(run)
    await enter(other.undo)
    await enter((await messages(id, 'exchange')).run)
    expect(calls).toEqual(['run', 'undo without a run', 'run'])
    expect(other.run.id).not.toBe(run.id)
  })

  test('a message that is no request of a saga is refused', async () => {
    await expect(enter(Ship({ order: 'A' }))).rejects.toMatchObject({ code: 'MALFORMED_MESSAGE' })
  })
}

describe('in memory', () => suite(() => memory() as unknown as Db))

describe('in PGlite', () => {
  let pglite: PGlite
  let db: Db
  beforeAll(async () => {
    pglite = await freshPGlite()
    const made = postgres({ pool: pglite, barrier: true })
    await made.migrate()
    db = made as unknown as Db
  })
  afterAll(() => pglite.close())
  suite(() => db)
})

describeWith(['postgres'], 'in PostgreSQL', () => {
  let database: FreshDatabase
  let pool: pg.Pool
  let db: Postgres<pg.PoolClient>

  beforeAll(async () => {
    database = await freshDatabase('postgres')
    pool = new pg.Pool({ connectionString: database.url, max: 5 })
    db = postgres({ pool, barrier: true, sagas: true })
    await db.migrate()
  })
  afterAll(async () => {
    await pool.end()
    await database.drop()
  })

  suite(() => db as unknown as Db)

  test('the undo waits for a run that is open, and sees how it ended', async () => {
    const { run, undo } = await messages()
    let release = () => {}
    const open = new Promise<void>((resolve) => {
      release = resolve
    })
    const seen: boolean[] = []
    const running = db.withTransaction((tx) => db.barrier(tx, run, () => open.then(() => undefined)))
    await new Promise((resolve) => setImmediate(resolve))
    const undoing = db.withTransaction((tx) => db.barrier(tx, undo, ({ ran }) => void seen.push(ran)))
    release()
    await Promise.all([running, undoing])
    expect(seen).toHaveLength(1)
    // Whichever came first: a run that is committed was seen, or it was refused by the tombstone.
    const { rows } = await pool.query('SELECT ran_at FROM saga_barriers WHERE key = $1', [run.extensions['sagakey']])
    expect(rows[0].ran_at !== null).toBe(seen[0])
  })

  test('the function says what is wrong with its arguments, and clean() forgets what is old', async () => {
    await expect(pool.query(`SELECT * FROM waybill_barrier('k', 'jump')`)).rejects.toThrow(/'run' or 'undo'/)
    await expect(pool.query(`SELECT * FROM waybill_barrier('new', 'run', '{}')`)).rejects.toThrow(/before the work/)
    expect(await db.barriers.clean()).toBe(0)
    expect(await db.barriers.clean({ retention: 0 })).toBeGreaterThan(0)
  })

  test('a participant in Python: run, repeat, undo, a run after it; its replies drive the saga', async (context) => {
    const missing = ['python3', 'psql'].filter((name) => spawnSync(name, ['--version']).status !== 0)
    if (missing.length > 0) return context.skip(`${missing.join(' and ')} is not on this machine`)
    await pool.query('CREATE TABLE parcels (id text PRIMARY KEY)')
    const { run, undo } = await messages()
    const other = await messages()
    const json = (message: Message) =>
      JSON.stringify({ id: message.id, type: message.type, ...message.extensions, data: message.data })
    const input = [run, run, undo, run, undo, other.undo, other.run].map(json).join('\n')
    const file = (path: string) => fileURLToPath(new URL(path, import.meta.url))
    const script = [file('participant-test.py'), file('../../examples/participant.py'), database.url]
    const { status, stdout, stderr } = spawnSync('python3', script, { input, encoding: 'utf8' })
    expect({ status, stderr, handled: stdout.trim().split('\n').length }).toEqual({ status: 0, stderr: '', handled: 7 })
    const { rows } = await pool.query(
      `SELECT event_type AS type, payload, attributes->'extensions'->>'sagaid' AS saga FROM outbox ORDER BY sequence`,
    )
    const parcel = run.extensions['sagakey']
    expect(rows.map(({ type, payload }) => [type, payload])).toEqual([
      ['ship.done', { parcel }],
      ['ship.done', { parcel }],
      ['ship.cancelled', { ran: true }],
      ['ship.cancelled', { ran: true }],
      ['ship.cancelled', { ran: false }],
    ])
    expect(rows.every(({ saga }) => saga !== null)).toBe(true)
    expect((await pool.query('SELECT FROM parcels')).rowCount).toBe(0)
  })

  test('in a router: request, handler, barrier and reply are one transaction', async () => {
    const client = new pg.Pool({ connectionString: database.url, max: 2 })
    const own = postgres({ pool: client, barrier: true, sagas: true })
    const handled = new Router('shipping')
      .use(transactional(own))
      .on(Ship, (message, { tx }) => own.barrier(tx, message, () => Shipped({ parcel: 5 })))
    const { id, run } = await messages()
    await handled.handle(run, { signal: new AbortController().signal, attempt: 1, router: 'shipping' } as never)
    const { rows } = await client.query(
      `SELECT attributes->'extensions' AS extensions FROM outbox ORDER BY sequence DESC LIMIT 1`,
    )
    expect(rows[0].extensions).toMatchObject({ sagaid: id, sagatype: 'order', sagastep: 'ship' })
    expect(sagaReplies({ store: own, sagas: [shipping as never] }).types).toContain('ship.done')
    await client.end()
  })
})
