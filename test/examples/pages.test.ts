import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import pg from 'pg'
import { beforeAll, expect, test } from 'vitest'
import { build, node } from '../readme/support.ts'
import { describeWith, freshDatabase } from '../support/services.ts'

const text = readFileSync(new URL('../../examples/order-service/view.ts', import.meta.url), 'utf8')
const [CREATE, INDEX] = [/`(CREATE TABLE [^`]+)`/, /`(CREATE INDEX [^`]+)`/].map((statement) =>
  // biome-ignore lint/suspicious/noTemplateCurlyInString: as the example has it
  statement.exec(text)![1]!.replace('${table}', 'order_list_view'),
)
const SELECT = /`(SELECT order_id[^`]+)`/.exec(text)![1]!

describeWith(['postgres'], 'the list of examples/order-service', () => {
  beforeAll(build, 170_000)

  test('is empty, and no fault, as long as no projector has made its table', async () => {
    const database = await freshDatabase()
    const file = fileURLToPath(new URL('order-service/first-look.ts', import.meta.url))
    try {
      const { output } = await node('--import', 'tsx', file, database.url)
      expect(JSON.parse(output)).toEqual({ orders: [], view: 'building' })
    } finally {
      await database.drop()
    }
  })

  test('a page, the first or a later one, is read from the index alone in its order: no join, no sort', async () => {
    const database = await freshDatabase()
    const pool = new pg.Pool({ connectionString: database.url, max: 1 })
    try {
      await pool.query(`${CREATE}; ${INDEX}`)
      await pool.query(`INSERT INTO order_list_view
        SELECT gen_random_uuid(), 'buyer ' || n % 50, 'Ann', 'new', '', n, now() - n * interval '1 second'
        FROM generate_series(1, 20000) AS n`)
      await pool.query('ANALYZE order_list_view')
      for (const place of [
        [null, null],
        ['2100-01-01', crypto.randomUUID()],
      ]) {
        const values = ['buyer 7', ...place, 21]
        expect((await pool.query(SELECT, values)).rows).toHaveLength(21)
        const { rows } = await pool.query(`EXPLAIN ${SELECT}`, values)
        const plan = rows.map((row) => row['QUERY PLAN'] as string).join('\n')
        expect(plan).toMatch(/^Limit .*\n +-> +Index Scan using order_list_view_buyer_id_created_at_order_id_idx/)
        expect(plan).not.toMatch(/Sort|Join|Nested|Hash/)
      }
    } finally {
      await pool.end()
      await database.drop()
    }
  })
})
