import { chmod, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest'
import { Relay, RoutingRelay } from '../../src/outbox/index.ts'
import { type PostgresOutboxOptions, postgres } from '../../src/postgres/index.ts'
import type { Checkpoint } from '../../src/projection/port.ts'
import { collector } from '../../src/testing/index.ts'
import { describeWith, freshDatabase, privatePostgres } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { Placed } from './support.ts'

const AUDIT = { by: 'test', note: 'a test' }
const PLAIN = `INSERT INTO outbox (event_id, topic, source, event_type, payload)
  VALUES (gen_random_uuid(), 'order.placed', '/test', 'order.placed', '{"n": 7}')`

describeWith(['postgres'], 'an outbox that is a log', () => {
  let server: Awaited<ReturnType<typeof privatePostgres>>
  let pool: pg.Pool
  beforeAll(async () => {
    // One of its own: tests of others drop databases, which is a checkpoint, after which a log looks anew who writes.
    server = await privatePostgres({ settings: { max_prepared_transactions: '5', checkpoint_timeout: '1d' } })
    const database = await freshDatabase(server)
    pool = new pg.Pool({ connectionString: database.url, max: 10 })
    pool.on('error', () => {})
  })
  afterEach(async () => {
    await pool.query(`SET lock_timeout = '5s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
  })
  afterAll(async () => {
    await pool.end()
    await server.end()
  })

  async function log(options: PostgresOutboxOptions = {}) {
    const db = postgres({ pool, outbox: { log: true, wake: 'off', ...options } })
    await db.migrate()
    const enqueue = (...numbers: number[]) =>
      db.withTransaction((tx) =>
        db.outbox.enqueue(
          tx,
          numbers.map((n) => Placed({ n })),
        ),
      )
    return { db, enqueue }
  }

  /**
   * What was seen ends with a checkpoint of the server (log-bound.ts), and other tests make some: they drop databases. A
   * scenario that one has come into is begun again.
   */
  async function undisturbed(scenario: (open: () => Promise<pg.PoolClient>) => Promise<void>): Promise<void> {
    const checkpoint = async () => (await pool.query('SELECT checkpoint_lsn FROM pg_control_checkpoint()')).rows[0]
    for (;;) {
      const before = await checkpoint()
      const opened: pg.PoolClient[] = []
      const open = async () => {
        const client = await pool.connect()
        opened.push(client)
        await client.query('BEGIN')
        return client
      }
      const failed = await scenario(open).then(
        () => undefined,
        (error: unknown) => ({ error }),
      )
      for (const client of opened) await client.query('ROLLBACK').finally(() => client.release())
      if (failed === undefined) return
      if ((await checkpoint()).checkpoint_lsn === before.checkpoint_lsn) throw failed.error
      await pool.query('DROP SCHEMA public CASCADE; CREATE SCHEMA public')
    }
  }

  const positions = async (
    read: { log: { read(after: bigint, limit: number): Promise<{ events: readonly { position: bigint }[] }> } },
    after = 0n,
  ) => (await read.log.read(after, 100)).events.map(({ position }) => Number(position))

  test('PostgreSQL refuses numbers given by hand, and takes plain INSERTs', async () => {
    const { db } = await log()
    await pool.query(PLAIN)
    expect(await positions(db)).toEqual([1])
    const byHand = PLAIN.replace('(event_id,', '(sequence, event_id,').replace('(gen_random', '(99, gen_random')
    await expect(pool.query(byHand)).rejects.toMatchObject({ code: '428C9' })
    await expect(pool.query('UPDATE outbox SET sequence = 5')).rejects.toMatchObject({ code: '428C9' })
  })

  test('a sequence that hands out numbers in advance is refused, by migrate, at start and at each look', async () => {
    const plain = postgres({ pool })
    await plain.migrate()
    await pool.query('ALTER SEQUENCE outbox_sequence_seq CACHE 20')
    const told = postgres({ pool, outbox: { log: true } })
    await expect(told.migrate()).rejects.toMatchObject({
      code: 'LOG_UNSAFE',
      message: expect.stringMatching(/CACHE 20/),
    })
    await pool.query('ALTER SEQUENCE outbox_sequence_seq CACHE 1')
    await told.migrate()
    await pool.query('ALTER SEQUENCE outbox_sequence_seq CACHE 20')
    await expect(told.outbox.check()).rejects.toMatchObject({ code: 'LOG_UNSAFE' })
    await pool.query(PLAIN)
    await pool.query('BEGIN; SELECT 1; ROLLBACK')
    await pool.query(PLAIN.replace('(gen', '(gen'))
    const { events } = await told.log.read(0n, 10).catch((error) => {
      expect(error).toMatchObject({ code: 'LOG_UNSAFE' })
      return { events: [] }
    })
    // What has no gap needs no look; no more than that is given.
    expect(events.every(({ position }, i) => position === BigInt(i + 1))).toBe(true)
  })

  test('an outbox in use becomes a log that begins behind what was drawn before', async () => {
    const before = postgres({ pool })
    await before.migrate()
    await pool.query(PLAIN)
    const { db, enqueue } = await log()
    const { position, trimmed } = await db.log.head()
    expect([position, trimmed]).toEqual([1n, 1n])
    await expect(db.log.read(0n, 10)).rejects.toMatchObject({ code: 'LOG_TRIMMED' })
    await enqueue(2)
    expect(await positions(db, trimmed)).toEqual([2])
    // It is recorded with its schema, and stays so.
    await expect(before.outbox.check()).rejects.toThrow(
      /is a log, and this process is not set up for that.*give log: true/,
    )
    await before.migrate()
    await expect(before.outbox.check()).rejects.toThrow(/is a log/)
    await db.migrate()
    expect((await db.log.head()).trimmed).toBe(1n)
  })

  test('archive files, and no archive at all, are refused with the reason', () => {
    for (const archive of [{ directory: '/tmp' }, 'none'] as const) {
      expect(() => postgres({ pool, outbox: { log: true, archive } })).toThrow(/archive: outbox is a log: .* files/)
    }
  })

  test('a prepared transaction holds it back, by name, and its numbers come when it commits', async () => {
    const { db, enqueue } = await log()
    const client = await pool.connect()
    const name = `log_${process.pid}_${Date.now()}`
    await client.query('BEGIN')
    await db.outbox.enqueue(client, Placed({ n: 1 }))
    await enqueue(2)
    expect(await positions(db)).toEqual([])
    await client.query(`PREPARE TRANSACTION '${name}'`)
    client.release()
    const held = await db.log.read(0n, 10)
    expect(held).toMatchObject({ events: [], upTo: 0n, heldBy: { pid: undefined, prepared: name } })
    await pool.query(`COMMIT PREPARED '${name}'`)
    await eventually('it is let go', async () => (await positions(db)).length > 0)
    expect(await positions(db)).toEqual([1, 2])
  })

  test('who holds it back is told by the process of the server', async () => {
    const { db, enqueue } = await log()
    const client = await pool.connect()
    const [{ pid }] = (await client.query('SELECT pg_backend_pid() AS pid')).rows
    await client.query('BEGIN')
    await db.outbox.enqueue(client, Placed({ n: 1 }))
    await enqueue(2)
    const first = await db.log.read(0n, 10)
    expect(first.heldBy).toMatchObject({ pid, prepared: undefined })
    const again = await db.log.read(0n, 10)
    expect(again.heldBy).toEqual(first.heldBy)
    await client.query('ROLLBACK')
    client.release()
    expect(await positions(db)).toEqual([2])
  })

  test('a writer that begins between two looks is not waited for', () =>
    undisturbed(async (open) => {
      const { db, enqueue } = await log()
      const one = await open()
      await db.outbox.enqueue(one, Placed({ n: 1 }))
      await enqueue(2)
      expect(await positions(db)).toEqual([])
      const two = await open()
      await db.outbox.enqueue(two, Placed({ n: 3 }))
      expect(await positions(db)).toEqual([])
      await one.query('ROLLBACK')
      // Number 1 is a gap for good, and `two` was not there when number 2 was seen.
      expect(await positions(db)).toEqual([2])
      await two.query('COMMIT')
      expect(await positions(db, 2n)).toEqual([3])
    }))

  test('a writer is waited for from when its number was drawn, so that later ones do not add to it', () =>
    undisturbed(async (open) => {
      const { db, enqueue } = await log()
      const draw = async (n: number) => {
        const client = await open()
        await db.outbox.enqueue(client, Placed({ n }))
        return (end: 'COMMIT' | 'ROLLBACK') => client.query(end)
      }
      const one = await draw(1)
      await enqueue(2)
      const [three, four] = [await draw(3), await draw(4)]
      expect(await positions(db)).toEqual([])
      const five = await draw(5)
      await one('ROLLBACK')
      await three('ROLLBACK')
      await four('COMMIT')
      // Number 4 could not be seen when it was looked who writes, and `five` was not there.
      expect(await positions(db)).toEqual([2, 4])
      await five('COMMIT')
      expect(await positions(db)).toEqual([2, 4, 5])
    }))

  test('behind one long transaction a run without a gap goes on', () =>
    undisturbed(async (open) => {
      const { db, enqueue } = await log()
      const one = await open()
      await db.outbox.enqueue(one, Placed({ n: 1 }))
      await enqueue(2)
      const two = await open()
      await db.outbox.enqueue(two, Placed({ n: 3 }))
      expect(await positions(db)).toEqual([])
      await one.query('COMMIT')
      expect(await positions(db)).toEqual([1, 2])
    }))

  test('replay from the archive moves events back, under their numbers and their ids', async () => {
    const { db, enqueue } = await log()
    const receipts = await enqueue(1, 2)
    const sink = collector()
    const relay = new Relay({ from: db.outbox, to: sink })
    await relay.runOnce()
    await db.outbox.admin.clean({ retention: 0 })
    const count = async (table: string) => Number((await pool.query(`SELECT count(*) AS n FROM ${table}`)).rows[0].n)
    expect([await count('outbox'), await count('outbox_archive')]).toEqual([0, 2])
    expect(await db.outbox.admin.replay({}, AUDIT, { archive: true })).toBe(2)
    expect([await count('outbox'), await count('outbox_archive')]).toEqual([2, 0])
    await relay.runOnce()
    const sent = sink.messages.map(({ id, extensions }) => [id, String(BigInt(extensions['sequence'] as string))])
    expect(sent.slice(2)).toEqual(sent.slice(0, 2))
    expect(sent.slice(2).map(([, sequence]) => sequence)).toEqual(receipts)
    expect(await positions(db)).toEqual([1, 2])
    await relay.stop()
  })

  test('an id that was enqueued again after it had been forgotten is replayed once, as it was last', async () => {
    const { db, enqueue } = await log()
    const event = Placed({ n: 7 }, { key: 'k' })
    const sink = collector()
    const relay = new Relay({ from: db.outbox, to: sink })
    const archived = async () => {
      await relay.runOnce()
      await db.outbox.admin.clean({ retention: 0 })
    }
    for (const _ of ['first', 'again']) {
      await db.withTransaction((tx) => db.outbox.enqueue(tx, event))
      await archived()
    }
    await enqueue(8)
    await archived()
    const { rows } = await pool.query(
      'SELECT count(DISTINCT event_id)::int AS ids, count(*)::int AS n FROM outbox_archive',
    )
    expect(rows).toEqual([{ ids: 2, n: 3 }])
    expect(await db.outbox.admin.replay({}, AUDIT, { archive: true })).toBe(2)
    await relay.runOnce()
    expect(sink.messages.slice(3).map(({ extensions }) => Number(extensions['sequence']))).toEqual([2, 3])
    expect(await positions(db)).toEqual([1, 2, 3])
    await relay.stop()
  })

  test('a discarded event is in the archive as such, and no replay sends it', async () => {
    const { db, enqueue } = await log()
    await enqueue(1)
    const window = { since: new Date(0), until: new Date(Date.now() + 60_000), topic: 'order.placed' }
    await db.outbox.admin.discardPending(window, AUDIT, { expected: 1 })
    const { rows } = await pool.query('SELECT sequence, state FROM outbox_archive')
    expect(rows).toEqual([{ sequence: '1', state: 'discarded' }])
    expect(await db.outbox.admin.replay({}, AUDIT, { archive: true })).toBe(0)
    expect(await positions(db)).toEqual([1])
  })

  test('a routing relay leaves events in the log, and their numbers go to each destination', async () => {
    const { db, enqueue } = await log({ branches: ['a', 'b'] })
    await enqueue(1, 2)
    const [a, b] = [collector(), collector()]
    const relay = new RoutingRelay({ from: db.outbox, to: { a, b }, routes: { 'order.placed': ['a', 'b'] } })
    await relay.runOnce()
    for (const { messages } of [a, b]) {
      expect(messages.map(({ extensions }) => Number(extensions['sequence']))).toEqual([1, 2])
    }
    expect(await positions(db)).toEqual([1, 2])
    await relay.stop()
  })

  test('a log in time partitions, with ids kept apart', async () => {
    const { db, enqueue } = await log({ partition: 'day' })
    expect(await enqueue(1, 2)).toEqual(['1', '2'])
    expect(await positions(db)).toEqual([1, 2])
  })

  test('a payload of any size, also from the archive; a row that cannot be read costs only itself', async () => {
    const { db } = await log()
    const large = 'x'.repeat(100_000)
    await db.withTransaction((tx) => db.outbox.enqueue(tx, [Placed({ n: 1, large } as never), Placed({ n: 2 })]))
    await pool.query(`UPDATE outbox SET attributes = '[]' WHERE sequence = 2`)
    const read = async () => (await db.log.read(0n, 10)).events
    const check = (events: Awaited<ReturnType<typeof read>>) => {
      expect(events.map(({ position }) => position)).toEqual([1n, 2n])
      expect(JSON.parse(events[0]!.message!.data as string)).toEqual({ n: 1, large })
      expect(events[1]).toMatchObject({ message: undefined, unreadable: expect.stringMatching(/not a JSON object/) })
    }
    check(await read())
    await pool.query(`UPDATE outbox SET state = 'published', published_at = now()`)
    await db.outbox.admin.clean({ retention: 0 })
    check(await read())
  })

  test('trimLog removes what everybody has read, and nothing else', async () => {
    const { db, enqueue } = await log()
    await enqueue(1, 2, 3, 4)
    const behind = { name: 'orders', version: 2, position: 2n } as Checkpoint
    const checkpoints = [{ list: async () => [behind] }]
    await expect(db.trimLog(3n, AUDIT, { checkpoints })).rejects.toMatchObject({ code: 'NOT_EMPTY' })
    const relay = new Relay({ from: db.outbox, to: collector() })
    await relay.runOnce()
    await relay.stop()
    await expect(db.trimLog(4n, AUDIT, { checkpoints })).rejects.toThrow(/projection orders version 2 .* up to 2 only/)
    await expect(db.trimLog(6n, AUDIT)).rejects.toMatchObject({ code: 'INVALID_OPTION' })
    expect(await db.trimLog(3n, AUDIT, { checkpoints })).toBe(2)
    expect(await positions(db, 2n)).toEqual([3, 4])
    await expect(db.log.read(1n, 10)).rejects.toMatchObject({ code: 'LOG_TRIMMED' })
    expect(await db.log.head()).toMatchObject({ position: 4n, trimmed: 2n })
    expect(await db.trimLog(5n, AUDIT)).toBe(2)
    expect(await db.log.head()).toMatchObject({ position: 4n, trimmed: 4n })
    expect((await db.outbox.admin.audits()).map(({ action }) => action)).toEqual(['trim', 'trim'])
  })

  test('an outbox that is no log says so', async () => {
    const db = postgres({ pool })
    expect(() => db.log).toThrow(/is no log; give .*log: true/)
  })
})

describeWith(['postgres', 'pgbouncer'], 'a log behind a pooler', () => {
  test('is read like any other', async () => {
    const database = await freshDatabase('postgres')
    const direct = new pg.Pool({ connectionString: database.url })
    const pooled = new pg.Pool({ connectionString: database.through('pgbouncer') })
    try {
      await postgres({ pool: direct, outbox: { log: true } }).migrate()
      const db = postgres({ pool: pooled, outbox: { log: true } })
      await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 })))
      const client = await direct.connect()
      await client.query('BEGIN')
      await client.query(PLAIN)
      await direct.query(PLAIN)
      expect((await db.log.read(0n, 10)).upTo).toBe(1n)
      expect((await db.log.read(1n, 10)).heldBy).toBeDefined()
      await client.query('COMMIT')
      client.release()
      await eventually('it is let go', async () => (await db.log.read(1n, 10)).upTo === 3n)
    } finally {
      await Promise.all([direct.end(), pooled.end()])
      await database.drop()
    }
  })
})

describeWith(['postgres'], 'a log whose server goes down', () => {
  test('a prepared transaction that a restart or a crash renames is not taken for one that has ended', async () => {
    const server = await privatePostgres({ settings: { max_prepared_transactions: '5' } })
    const database = await freshDatabase(server)
    const pool = new pg.Pool({ connectionString: database.url })
    pool.on('error', () => {})
    try {
      const db = postgres({ pool, outbox: { log: true, wake: 'off' } })
      await db.migrate()
      const client = await pool.connect()
      client.on('error', () => {})
      await client.query('BEGIN')
      await db.outbox.enqueue(client, Placed({ n: 1 }))
      await client.query(`PREPARE TRANSACTION 'kept'`)
      client.release()
      await pool.query(PLAIN)
      // The pool finds out one by one which of its connections are gone.
      const read = () => eventually('the log is read', () => db.log.read(0n, 10).catch(() => undefined))
      expect((await read()).heldBy).toMatchObject({ prepared: 'kept' })
      // A crash of one backend ends all of them, and the postmaster stays.
      const crashing = await pool.connect()
      crashing.on('error', () => {})
      const [{ pid }] = (await crashing.query('SELECT pg_backend_pid() AS pid')).rows
      process.kill(pid, 'SIGKILL')
      crashing.release(true)
      const up = () => eventually('the server answers', () => pool.query('SELECT 1').catch(() => undefined))
      await up()
      for (let n = 0; n < 3; n++) expect(await read()).toMatchObject({ events: [], heldBy: { prepared: 'kept' } })
      await server.restart('fast')
      await up()
      for (let n = 0; n < 3; n++) expect(await read()).toMatchObject({ events: [], heldBy: { prepared: 'kept' } })
      await eventually('it is committed', () => pool.query(`COMMIT PREPARED 'kept'`).catch(() => undefined))
      expect((await read()).events.map(({ position }) => position)).toEqual([1n, 2n])
    } finally {
      await pool.end()
      await server.end()
    }
  })

  test('on a standby nothing is read: it does not show who writes', async () => {
    const server = await privatePostgres()
    const database = await freshDatabase(server)
    const pool = new pg.Pool({ connectionString: database.url })
    pool.on('error', () => {})
    try {
      const db = postgres({ pool, outbox: { log: true, wake: 'off' } })
      await db.migrate()
      await pool.query(PLAIN)
      expect((await db.log.read(0n, 10)).events).toHaveLength(1)
      const [{ data_directory: data }] = (await pool.query('SHOW data_directory')).rows
      await server.stop('fast')
      const signal = join(data, 'standby.signal')
      await writeFile(signal, '')
      await chmod(signal, 0o666)
      await server.start()
      const [{ standby }] = await eventually('it answers', () =>
        pool.query('SELECT pg_is_in_recovery() AS standby').then(
          ({ rows }) => rows,
          () => undefined,
        ),
      )
      expect(standby).toBe(true)
      for (const ask of [() => db.log.read(0n, 10), () => db.log.head()]) {
        await expect(ask()).rejects.toMatchObject({
          code: 'UNAVAILABLE',
          message: expect.stringContaining('primary'),
        })
      }
    } finally {
      await pool.end()
      await server.end()
    }
  })
})
