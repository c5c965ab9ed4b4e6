import { afterEach, test } from 'vitest'
import type { SqlValue } from '../../src/drivers/sql/sql.ts'
import { installOrms, type Load } from '../support/orms.ts'
import { describeWith, without } from '../support/services.ts'
import { type Library, readsItsWrites } from './own-transaction.ts'
import { world } from './support.ts'

/** What the guide on PostgreSQL says to give to `enqueue`, with the libraries themselves. */

const load: Load = without('postgres') ? async () => ({}) : await installOrms()
// biome-ignore lint/suspicious/noExplicitAny: their types are not installed here
type Given = any

const NOTE = 'INSERT INTO notes VALUES ($1)'

const libraries: Record<string, (url: string) => Promise<Library>> = {
  async TypeORM(url) {
    const { DataSource } = await load('typeorm')
    const source = await new DataSource({ type: 'postgres', url }).initialize()
    return {
      transaction: (run) => source.transaction((manager: Query) => run(manager, (text) => manager.query(NOTE, [text]))),
      close: () => source.destroy(),
    }
  },
  async 'a QueryRunner of TypeORM'(url) {
    const { DataSource } = await load('typeorm')
    const source = await new DataSource({ type: 'postgres', url }).initialize()
    return {
      async transaction(run) {
        const runner = source.createQueryRunner()
        await runner.startTransaction()
        try {
          const result = await run(runner, (text) => runner.query(NOTE, [text]))
          await runner.commitTransaction()
          return result
        } catch (error) {
          await runner.rollbackTransaction()
          throw error
        } finally {
          await runner.release()
        }
      },
      close: () => source.destroy(),
    }
  },
  async Knex(url) {
    const knex = (await load('knex')).default({ client: 'pg', connection: url })
    return {
      transaction: (run) =>
        knex.transaction((trx: Given) => run(trx, async (text) => await trx('notes').insert({ text }))),
      close: () => knex.destroy(),
    }
  },
  async Sequelize(url) {
    const { Sequelize } = await load('sequelize')
    const sequelize = new Sequelize(url, { logging: false })
    return {
      transaction: (run) =>
        sequelize.transaction((t: unknown) =>
          run(t, (text) => sequelize.query(NOTE, { bind: [text], transaction: t })),
        ),
      close: () => sequelize.close(),
    }
  },
  async Prisma(url) {
    const [{ PrismaClient }, { PrismaPg }] = [await load('notes-client'), await load('@prisma/adapter-pg')]
    const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: url }) })
    return {
      transaction: (run) =>
        prisma.$transaction((tx: Given) => run(tx, (text) => tx.notes.create({ data: { text } })), {
          maxWait: 30_000,
          timeout: 30_000,
        }),
      close: () => prisma.$disconnect(),
    }
  },
  async Kysely(url) {
    const { Kysely, PostgresDialect, CompiledQuery } = await load('kysely')
    const { default: pg } = await load('pg')
    const kysely = new Kysely({ dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: url }) }) })
    return {
      transaction: (run) =>
        kysely.transaction().execute((trx: Given) =>
          run(
            (text: string, values: readonly SqlValue[]) => trx.executeQuery(CompiledQuery.raw(text, [...values])),
            (text) => trx.insertInto('notes').values({ text }).execute(),
          ),
        ),
      close: () => kysely.destroy(),
    }
  },
  async Drizzle(url) {
    const { drizzle } = await load('drizzle-orm/node-postgres')
    const { sql } = await load('drizzle-orm')
    const { default: pg } = await load('pg')
    const pool = new pg.Pool({ connectionString: url })
    const parted = (text: string, values: readonly SqlValue[]) =>
      text.split(/\$(\d+)/).map((part, i) => (i % 2 === 0 ? sql.raw(part) : sql.param(values[Number(part) - 1])))
    return {
      transaction: (run) =>
        drizzle(pool).transaction((tx: { execute(query: unknown): Promise<unknown> }) =>
          run(
            (text: string, values: readonly SqlValue[]) => tx.execute(sql.join(parted(text, values))),
            (text) => tx.execute(sql`INSERT INTO notes VALUES (${text})`),
          ),
        ),
      close: () => pool.end(),
    }
  },
  async MikroORM(url) {
    const { MikroORM } = await load('@mikro-orm/postgresql')
    const { EntitySchema } = await load('@mikro-orm/core')
    const notes = new EntitySchema({
      name: 'Note',
      tableName: 'notes',
      properties: { text: { type: 'text', primary: true } },
    })
    const orm = await MikroORM.init({ clientUrl: url, entities: [notes], debug: false })
    // It counts its parameters by `?`.
    const counted = (text: string, values: readonly SqlValue[]): [string, SqlValue[]] => {
      const used: SqlValue[] = []
      const question = text.replace(/\?/g, '\\?').replace(/\$(\d+)/g, (_, number: string) => {
        used.push(values[Number(number) - 1] ?? null)
        return '?'
      })
      return [question, used]
    }
    return {
      transaction: (run) =>
        orm.em.transactional((em: { execute(text: string, values: readonly SqlValue[]): Promise<unknown> }) =>
          run(
            (text: string, values: readonly SqlValue[]) => em.execute(...counted(text, values)),
            (text) => em.execute('INSERT INTO notes VALUES (?)', [text]),
          ),
        ),
      close: () => orm.close(),
    }
  },
}

interface Query {
  query(text: string, values: readonly unknown[]): Promise<unknown>
}

describeWith(['postgres'], 'a token of a write in the transaction of an ORM', () => {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  test.each(Object.entries(libraries))(
    '%s: known before the commit, and reached when the row is there',
    async (_, open) => {
      const at = await world('postgres', { outbox: { log: true } })
      ends.push(() => at.end())
      const library = await open(at.url)
      ends.push(() => library.close())
      await readsItsWrites(at, library)
    },
  )
})
