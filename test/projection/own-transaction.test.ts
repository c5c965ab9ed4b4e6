import pg from 'pg'
import postgresJs from 'postgres'
import { afterEach, expect, test } from 'vitest'
import { postgres } from '../../src/postgres/index.ts'
import { Projector } from '../../src/projection/index.ts'
import { freshPGlite } from '../support/pglite.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { type Library, readsItsWrites } from './own-transaction.ts'
import { created, itemAdded, orders, world } from './support.ts'

const NOTE = 'INSERT INTO notes VALUES ($1)'
const ends: (() => unknown)[] = []
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

function ofPg(url: string): Library {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  return {
    async transaction(run) {
      const client = await pool.connect()
      try {
        await client.query('BEGIN')
        const result = await run(client, (text) => client.query(NOTE, [text]))
        await client.query('COMMIT')
        return result
      } catch (error) {
        await client.query('ROLLBACK')
        throw error
      } finally {
        client.release()
      }
    },
    close: () => pool.end(),
  }
}

function ofPostgresJs(url: string): Library {
  const sql = postgresJs(url, { max: 1, onnotice: () => {} })
  return {
    transaction: async (run) => (await sql.begin((tx) => run(tx, (text) => tx.unsafe(NOTE, [text])))) as never,
    close: () => sql.end({ timeout: 1 }),
  }
}

describeWith(['postgres'], 'a token of a write in one’s own transaction', () => {
  test.each([
    ['pg', ofPg],
    ['postgres.js', ofPostgresJs],
  ])('of %s: known before the commit, and reached when the row is there', async (_, open) => {
    const at = await world('postgres', { outbox: { log: true } })
    ends.push(() => at.end())
    const library = open(at.url)
    ends.push(() => library.close())
    await readsItsWrites(at, library)
  })
})

test('a token of a write in a transaction of PGlite, which is one session: reached when the row is there', async () => {
  const pglite = await freshPGlite()
  ends.push(() => pglite.close())
  const db = postgres({ pool: pglite, outbox: { log: true }, projections: true })
  await db.migrate()
  const view = orders()
  const projector = new Projector({ store: db, log: db.log, projections: [view] })
  ends.push(() => projector.stop())
  await projector.start()
  await eventually('it has been built', async () => (await db.projections.load(view))?.builtAt)
  const write = () =>
    pglite.transaction(async (tx) => db.log.token(await db.outbox.enqueue(tx, [created('o1'), itemAdded('o1', 5)])))
  const token = await write()
  expect(token).toEqual({ log: 'outbox', incarnation: (await db.log.head()).incarnation, positions: [1n, 2n] })
  expect(await projector.view(view).waitFor(token, { timeout: '30s' })).toEqual({ answer: 'reached' })
  const { rows } = await pglite.query('SELECT order_id, amount::text AS amount FROM order_list_view')
  expect(rows).toEqual([{ order_id: 'o1', amount: '15' }])
})
