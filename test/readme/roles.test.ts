import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { event, Relay, Router, transactional } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector, scriptedSource } from '../../src/testing/index.ts'
import { describeWith, type FreshDatabase, freshDatabase } from '../support/services.ts'
import { read } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const ROLES = ['shop_writer', 'shop_relay', 'shop_consumer', 'shop_operator'] as const

/** The blocks of SQL that grant something, in the order of the guide. */
function grantsOfGuide(): string[] {
  const blocks = [...read('docs/guides/postgres-setup.md').matchAll(/```sql\n(.*?)```/gs)].map(([, text]) => text!)
  return blocks.filter((text) => text.includes('GRANT '))
}

describeWith(['postgres'], 'the roles of the guide', () => {
  const suffix = randomBytes(4).toString('hex')
  const pools: pg.Pool[] = []
  let database: FreshDatabase
  let owner: pg.Pool

  beforeAll(async () => {
    database = await freshDatabase()
    owner = pool(database.url)
    await postgres({ pool: owner }).migrate()
    const [grants] = grantsOfGuide()
    for (const role of ROLES) await owner.query(`CREATE ROLE ${role}_${suffix} LOGIN`)
    await owner.query(grants!.replace(/shop_\w+/g, (role) => `${role}_${suffix}`))
  })

  afterAll(async () => {
    await Promise.all(pools.splice(1).map((one) => one.end()))
    for (const role of ROLES) {
      await owner.query(`DROP OWNED BY ${role}_${suffix}`)
      await owner.query(`DROP ROLE ${role}_${suffix}`)
    }
    await owner.end()
    await database.drop()
  })

  function pool(url: string): pg.Pool {
    const made = new pg.Pool({ connectionString: url })
    pools.push(made)
    return made
  }

  function as(role: (typeof ROLES)[number]) {
    const url = new URL(database.url)
    url.username = `${role}_${suffix}`
    return postgres({ pool: pool(url.href) })
  }

  const enqueue = (n: number, id?: string) => {
    const db = as('shop_writer')
    return db.withTransaction((tx) =>
      db.outbox.enqueue(tx, Placed({ n }, id === undefined ? {} : { id }), { key: 'k' }),
    )
  }

  test('a writer enqueues, also the same again, and can do no more', async () => {
    const id = '018f0000-0000-7000-8000-000000000001'
    expect(await enqueue(1, id)).toBe(await enqueue(1, id))
    await expect(as('shop_writer').outbox.admin.rearm({})).rejects.toMatchObject({ code: 'NO_PERMISSION' })
  })

  test('with ids in a table of their own a writer needs what the second block grants', async () => {
    const apart = await freshDatabase()
    const mine = pool(apart.url)
    const db = postgres({ pool: mine, outbox: { dedup: true } })
    await db.migrate()
    const [first, second] = grantsOfGuide()
    const grant = (text: string) => mine.query(text.replace(/shop_\w+/g, (role) => `${role}_${suffix}`))
    const write = () =>
      db.withTransaction(async (tx) => {
        await tx.query(`SET LOCAL ROLE shop_writer_${suffix}`)
        return db.outbox.enqueue(tx, Placed({ n: 1 }))
      })
    await grant(first!)
    await expect(write()).rejects.toMatchObject({ code: 'NO_PERMISSION' })
    await grant(second!)
    expect(Number(await write())).toBeGreaterThan(0)
    for (const role of ROLES) await mine.query(`DROP OWNED BY ${role}_${suffix}`)
    pools.splice(pools.indexOf(mine), 1)
    await mine.end()
    await apart.drop()
  })

  test.each(['owner', 'lease'] as const)('a relay reads as %s', async (reader) => {
    await enqueue(2)
    for (const deleteOnPublish of [false, true]) {
      await enqueue(3)
      const sink = collector()
      const relay = new Relay({ from: as('shop_relay').outbox, to: sink, reader, deleteOnPublish })
      expect((await relay.runOnce()).done).toBeGreaterThan(0)
      await relay.stop()
    }
  })

  test('a consumer uses inbox and outbox', async () => {
    const source = scriptedSource([[Placed({ n: 4 })]])
    const consumer = new Router('billing')
      .use(transactional(as('shop_consumer')))
      .on(Placed, () => Placed({ n: 5 }))
      .consume(source)
    expect(await consumer.runOnce()).toMatchObject({ done: 1 })
    await consumer.stop()
  })

  test('an operator looks, acts and cleans', async () => {
    const db = as('shop_operator')
    const audit = { by: 'anna', note: 'a test' }
    await db.outbox.admin.stats()
    await db.outbox.admin.list()
    await db.outbox.admin.rearm({}, audit)
    await db.outbox.admin.discardDead({}, audit)
    await db.outbox.admin.replay({}, audit)
    expect(await db.outbox.admin.audits()).toHaveLength(3)
    expect(await db.outbox.admin.clean({ retention: 0 })).toBeGreaterThanOrEqual(0)
    expect(await db.inbox.clean({ retention: 0 })).toBe(1)
  })
})
