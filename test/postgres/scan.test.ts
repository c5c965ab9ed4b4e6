import { afterEach, beforeEach, expect, test } from 'vitest'
import { systemClock } from '../../src/core/index.ts'
import type { Connection } from '../../src/drivers/sql/sql.ts'
import { RELEASE } from '../../src/flow/index.ts'
import { idOf } from '../../src/postgres/row.ts'
import { OwnerScan } from '../../src/postgres/scan.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { number, outboxOn, Placed, type TestOutbox } from './support.ts'

let t: TestOutbox
let connection: Connection
/** Comes before the server hears of a read, and after. */
let before: () => unknown
let after: (statement: string) => unknown
let scan: OwnerScan

beforeEach(async () => {
  t = await outboxOn()
  connection = await t.db.database.connect({ prepare: false })
  before = () => {}
  after = () => {}
  const reader = {
    async read(...args: Parameters<Connection['read']>) {
      await before()
      const rows = await connection.read(...args)
      await after(args[0])
      return rows
    },
  }
  scan = new OwnerScan(reader as Connection, t.outbox.names, {}, systemClock, {
    readsAhead: false,
    numbersInOrder: true,
  })
})
afterEach(async () => {
  await connection.release()
  await t.end()
})

const three = () => [1, 2, 3].map((n) => Placed({ n }, { key: 'a' }))
const LATER = `now() + interval '1h'`
const become = (n: number, state: string) =>
  t.pool.query(`UPDATE outbox SET state = $2, available_at = ${LATER} WHERE payload ->> 'n' = $1`, [String(n), state])

test('what is found blocked is not handed out by the same take, though nothing blocks it any more by then', async () => {
  const [first, second] = three()
  await t.enqueue([first!, second!])
  await become(1, 'held')
  // A settlement comes in between two reads of one take.
  after = (statement) => (statement === 'ready' ? become(1, 'published') : undefined)
  const { deliveries, held } = await scan.take({ count: 10, bytes: 1e6 }, true)
  expect(held.map(idOf)).toEqual([second!.id])
  expect(deliveries).toEqual([])
})

test('what is given back while a take reads is not overtaken by what that take finds blocked', async () => {
  const [first, second, third] = three()
  await t.enqueue([first!, second!])
  const [one, two] = (await scan.take({ count: 2, bytes: 1e6 }, false)).deliveries
  expect([one, two].map((delivery) => number(delivery!.message))).toEqual([1, 2])
  await t.enqueue([third!])
  // On its way to the server, it takes the second for unsettled; it is not, and the first has failed, when it reads.
  before = async () => {
    before = () => {}
    scan.settled(two!, RELEASE)
    await become(1, 'retrying')
    scan.settled(one!, { kind: 'retry', after: 3_600_000, charged: true, error: new Error('no') })
  }
  expect(await scan.take({ count: 10, bytes: 1e6 }, true)).toMatchObject({ deliveries: [], held: [] })
  const { deliveries, held } = await scan.take({ count: 10, bytes: 1e6 }, false)
  expect(deliveries).toEqual([])
  expect(held.map(idOf)).toEqual([second!.id, third!.id])
})

test('who was told of something and found nothing looks from the very left within a second', async () => {
  const clock = new FakeClock()
  const options = { readsAhead: false, numbersInOrder: true }
  const scan = new OwnerScan(connection, t.outbox.names, {}, clock, options)
  const take = (notified: boolean) => scan.take({ count: 1000, bytes: 1e9 }, notified)
  await t.enqueue(Array.from({ length: 4000 }, (_, n) => Placed({ n })))
  let taken = await take(false)
  // So much was published that scans begin far behind.
  for (; taken.deliveries.length > 0; taken = await take(false)) {
    await t.pool.query(`UPDATE outbox SET state = 'published' WHERE event_id = ANY ($1)`, [
      taken.deliveries.map(({ eventId }) => eventId),
    ])
    for (const delivery of taken.deliveries) scan.settled(delivery, { kind: 'done' })
    await clock.advance(60)
  }
  await scan.look()
  expect(scan.nextTimer).toBe(Number.POSITIVE_INFINITY)
  await take(true)
  await scan.look()
  expect(scan.nextTimer).toBeLessThanOrEqual(1000)
})
