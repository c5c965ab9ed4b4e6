import { afterEach, beforeEach, expect, test } from 'vitest'
import { event } from '../../src/core/index.ts'
import { memory } from '../../src/memory/index.ts'
import { Router } from '../../src/router/index.ts'
import { transactional } from '../../src/store/middleware.ts'
import { recordTelemetry } from '../../src/testing/index.ts'
import { listSource } from '../observability/support.ts'

const Placed = event<{ n: number }>('order.placed')

let recorded: ReturnType<typeof recordTelemetry>
beforeEach(() => {
  recorded = recordTelemetry(['warning'])
})
afterEach(() => recorded.stop())

/** A service of this name that gets all the messages. */
async function service(db: ReturnType<typeof memory>, name: string, messages: readonly ReturnType<typeof Placed>[]) {
  const handled: number[] = []
  const router = new Router(name).use(transactional(db)).on(Placed, ({ data }) => void handled.push(data.n))
  const consumer = router.consume(listSource(messages))
  while ((await consumer.runOnce()).taken > 0);
  await consumer.stop()
  return handled
}

const orders = (count: number) => Array.from({ length: count }, (_, n) => Placed({ n }))

test('two services of one name skip what the other has handled: one of them says so, once', async () => {
  const db = memory()
  const messages = orders(300)
  await service(
    db,
    'orders',
    messages.filter((_, n) => n % 2 === 0),
  )
  expect(recorded.of('warning')).toEqual([])
  expect(await service(db, 'orders', messages)).toHaveLength(150)
  expect(recorded.of('warning')).toEqual([
    { where: 'inbox of orders', message: expect.stringContaining('give their routers different names') },
  ])
  expect(recorded.of('warning')[0]!.message).toContain('"orders"')
})

test('a few that come again, as after a crash, are not worth a word', async () => {
  const db = memory()
  const messages = orders(1000)
  await service(
    db,
    'billing',
    messages.filter((_, n) => n % 10 === 0),
  )
  await service(db, 'billing', messages)
  expect(recorded.of('warning')).toEqual([])
})
