import { expect, test } from 'vitest'
import { event, transaction, transactional } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { type Context, Router } from '../../src/router/index.ts'
import { FakeClock, scriptedSource } from '../../src/testing/index.ts'

const Placed = event<{ n: number }>('order.placed')
const redelivering = { features: { redelivers: true } }

/** Two deliveries of one message, one after the other, to a handler that settles them by itself inside a transaction. */
async function twice(
  handler: (context: Context, undo: (fn: () => void) => void) => void,
  ack: 'manual' | 'success' = 'manual',
) {
  const db = memory()
  const clock = new FakeClock()
  const message = Placed({ n: 1 })
  const source = scriptedSource([[message], [message]] as never, redelivering)
  let calls = 0
  let effects = 0
  const router = new Router('r').use(transactional(db)).on(Placed, async (_, context) => {
    calls++
    effects++
    context.tx.onRollback(() => effects--)
    handler(context, (fn) => setImmediate(fn))
  })
  const consumer = router.consume(source, { ack, clock, timeout: '5s' })
  await consumer.runOnce()
  await consumer.runOnce()
  await consumer.stop()
  return { kinds: source.settlements.map(({ settlement }) => settlement.kind), calls, effects }
}

test('acked inside its transaction: a duplicate is skipped, and acked', async () => {
  const answers: boolean[] = []
  const ended = await twice(({ ack }) => void answers.push(ack(), ack()))
  expect(ended).toEqual({ kinds: ['done', 'done'], calls: 1, effects: 1 })
  expect(answers).toEqual([true, false])
})

test('nacked inside its transaction: nothing is kept, and the handler has it again', async () => {
  const answers: boolean[] = []
  const ended = await twice(({ ack, nack }) => {
    if (answers.length === 0) answers.push(nack(new Error('not now')), ack())
    else ack()
  })
  expect(ended).toEqual({ kinds: ['retry', 'done'], calls: 2, effects: 1 })
  expect(answers).toEqual([true, false])
})

test('acked when its transaction has committed already: that counts', async () => {
  const ended = await twice(({ ack }, later) => later(() => expect(ack()).toBe(true)))
  expect(ended).toEqual({ kinds: ['done', 'done'], calls: 1, effects: 1 })
})

test('acked where the consumer acks: refused before anything is committed', async () => {
  const ended = await twice(({ ack }) => ack(), 'success')
  expect(ended).toEqual({ kinds: ['retry', 'retry'], calls: 2, effects: 0 })
})

test('a transaction without an inbox keeps nothing of what was nacked', async () => {
  const db = memory()
  let effects = 0
  const router = new Router('r').use(transaction(db)).on(Placed, async (_, { tx, nack }) => {
    effects++
    tx.onRollback(() => effects--)
    nack(new Error('not now'))
  })
  const source = scriptedSource([[Placed({ n: 1 })]] as never, redelivering)
  const consumer = router.consume(source, { ack: 'manual', clock: new FakeClock() })
  expect(await consumer.runOnce()).toMatchObject({ retry: 1 })
  await consumer.stop()
  expect(effects).toBe(0)
})
