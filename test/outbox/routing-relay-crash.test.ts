import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { expect, test } from 'vitest'
import { type Message, RoutingRelay } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector, type RunningScript, recordTelemetry, runScript } from '../../src/testing/index.ts'
import { bundled } from '../support/bundled.ts'
import { scale } from '../support/scale.ts'
import { describeWith, freshDatabase } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { BRANCHES, filing } from './routing-routes.ts'
import { Placed } from './routing-support.ts'

const script = bundled(new URL('./routing-child.ts', import.meta.url))

async function world() {
  const database = await freshDatabase()
  const folder = mkdtempSync(join(tmpdir(), 'waybill-routing-'))
  const pool = new pg.Pool({ connectionString: database.url, max: 20 })
  pool.on('error', () => {})
  const db = postgres({ pool, outbox: { branches: BRANCHES } })
  await db.migrate()
  const started: RunningScript[] = []
  return {
    db,
    pool,
    run(at?: string): RunningScript {
      const args = [database.url, folder]
      const child = runScript({ script, args, timeout: 300_000, ...(at === undefined ? {} : { at }) })
      started.push(child)
      return child
    },
    /** A relay in this process, until nothing is left. */
    async finish(): Promise<void> {
      const relay = filing(db.outbox, folder)
      await relay.start()
      try {
        await until(
          'nothing waits',
          async () => (await this.waiting()) === 0,
          () => JSON.stringify(relay.status()),
        )
      } finally {
        await relay.stop()
      }
    },
    async fill(count: number, keys: number): Promise<Message[]> {
      const all = Array.from({ length: count }, (_, n) => Placed({ n }, { key: `k${n % keys}` }))
      for (let from = 0; from < count; from += 500) {
        await db.withTransaction((tx) => db.outbox.enqueue(tx, all.slice(from, from + 500)))
      }
      return all
    },
    /** What arrived, in order, with repetitions. */
    arrived(name: string): string[] {
      const path = join(folder, name)
      return existsSync(path) ? readFileSync(path, 'utf8').split('\n').filter(Boolean) : []
    },
    /** One that was killed may have left an event that is published and was to be removed next: that is for the cleaner. */
    async waiting(): Promise<number> {
      const { rows } = await pool.query(
        `SELECT (SELECT count(*) FROM outbox WHERE state <> 'published')::int
          + (SELECT count(*) FROM outbox_to_warehouse WHERE state <> 'published')::int
          + (SELECT count(*) FROM outbox_to_audit WHERE state <> 'published')::int AS n`,
      )
      return rows[0].n
    },
    async end() {
      for (const child of started) child.kill()
      await pool.end()
      await database.drop()
      rmSync(folder, { recursive: true, force: true })
    },
  }
}

async function until(what: string, condition: () => boolean | Promise<boolean>, seen?: () => unknown): Promise<void> {
  await eventually(what, condition, { limit: 110_000, every: 20, ...(seen && { seen }) })
}

/** The first time each arrived. */
function firsts(all: readonly string[]): string[] {
  return [...new Set(all)]
}

describeWith(['postgres'], 'a routing relay that is killed', () => {
  const points = [
    'move.after',
    'warehouse.after-publish',
    'move.before',
    'warehouse.before-publish',
    'audit.after-publish#2',
  ]
  // Two batches of twenty may be on their way to a destination.
  const onTheWay = 40
  test.each(points.slice(0, scale({ test: 2, full: 5, torture: 5 })))(
    'at %s: everything arrives at both, and only what was on its way comes twice',
    { timeout: 240_000 },
    async (at) => {
      const it = await world()
      try {
        const sent = (await it.fill(60, 60)).map(({ id }) => id)
        const crashed = await it.run(at).finished
        expect(crashed.crashed).toBe(true)
        await it.finish()
        for (const name of BRANCHES) {
          const arrived = it.arrived(name)
          expect(firsts(arrived).sort()).toEqual([...sent].sort())
          expect(arrived.length - sent.length).toBeLessThanOrEqual(onTheWay)
        }
      } finally {
        await it.end()
      }
    },
  )

  test('again and again while events flow: each destination has all of them, in order per key', {
    timeout: 300_000,
  }, async () => {
    const it = await world()
    try {
      const size = scale({ test: 600, full: 4000, torture: 40_000 })
      const kills = scale({ test: 2, full: 10, torture: 60 })
      const sent = await it.fill(size, 10)
      for (let kill = 1; kill <= kills; kill++) {
        const victim = it.run()
        const progress = () => new Set(it.arrived('audit')).size
        await until(`progress after ${kill - 1} kills`, () => progress() >= (size * kill) / (kills + 2), progress)
        victim.kill()
        await victim.finished
      }
      await it.finish()
      const keyOf = new Map(sent.map(({ id, key }) => [id, key!]))
      for (const name of BRANCHES) {
        const arrived = firsts(it.arrived(name))
        expect([...arrived].sort()).toEqual(sent.map(({ id }) => id).sort())
        for (let k = 0; k < 10; k++) {
          const ofKey = (ids: string[]) => ids.filter((id) => keyOf.get(id) === `k${k}`)
          expect(ofKey(arrived), `${name} k${k}`).toEqual(ofKey(sent.map(({ id }) => id)))
        }
      }
    } finally {
      await it.end()
    }
  })
})

describeWith(['postgres'], 'branches in PostgreSQL', () => {
  test('a branch that was never migrated is told at start; migrate() makes it', async () => {
    const it = await world()
    try {
      const db = postgres({ pool: it.pool, outbox: { branches: [...BRANCHES, 'stock'] } })
      const to = { warehouse: collector(), audit: collector(), stock: collector() }
      const relay = new RoutingRelay({ from: db.outbox, to, routes: { '#': ['warehouse', 'audit', 'stock'] } })
      await expect(relay.start()).rejects.toMatchObject({
        code: 'NOT_MIGRATED',
        message: expect.stringContaining('outbox_to_stock'),
      })
      await db.migrate()
      await relay.start()
      await relay.stop()
    } finally {
      await it.end()
    }
  })

  test('events that wait in the branch of a destination that is no more are told at start', async () => {
    const it = await world()
    try {
      await it.db.outbox.distribute(new Map([['warehouse', [Placed({ n: 1 })]]]))
      const db = postgres({ pool: it.pool, outbox: { branches: ['audit'] } })
      const relay = new RoutingRelay({ from: db.outbox, to: { audit: collector() }, routes: { '#': 'audit' } })
      const telemetry = recordTelemetry(['warning'])
      await relay.start()
      await relay.stop()
      telemetry.stop()
      const text = 'the branch warehouse of outbox holds 1 events, and there is no destination of that name'
      expect(telemetry.of('warning').map(({ message }) => message)).toContain(text)
    } finally {
      await it.end()
    }
  })

  test('a branch keeps the schema and the choices of its outbox, and goes with it', async () => {
    const it = await world()
    try {
      const db = postgres({ pool: it.pool, outbox: { table: 'shop.outbox', dedup: true, branches: ['audit'] } })
      await db.migrate()
      await db.outbox.distribute(new Map([['audit', [Placed({ n: 1 })]]]))
      const { rows } = await it.pool.query(
        'SELECT (SELECT count(*)::int FROM shop.outbox_to_audit) AS events, (SELECT count(*)::int FROM shop.outbox_to_audit_ids) AS ids',
      )
      expect(rows).toEqual([{ events: 1, ids: 1 }])
      await db.migrations.down({ discard: 'pending' })
      const left = await it.pool.query(`SELECT to_regclass('shop.outbox_to_audit') AS branch`)
      expect(left.rows).toEqual([{ branch: null }])
    } finally {
      await it.end()
    }
  })

  test.each(['Audit', 'a-b', '', '1a', 'a"b', 'x'.repeat(60)])('%j is no name of a branch', async (name) => {
    expect(() => postgres({ pool: new pg.Pool(), outbox: { branches: [name] } })).toThrow(/INVALID|is not/)
  })
})
