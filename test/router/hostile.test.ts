import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { encodeData } from '../../src/core/index.ts'
import {
  correlation,
  deadLetter,
  event,
  type Middleware,
  Router,
  repeat,
  timeout,
  transactional,
} from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { scriptedSource } from '../../src/testing/index.ts'
import { HOSTILE } from '../support/hostile.ts'

/** Middleware looks at what a handler threw before the flow does. */
const MIDDLEWARE: Readonly<Record<string, () => Middleware>> = {
  repeat: () => repeat({ attempts: 2, backoff: { min: 0, max: 0, jitter: 0 } }),
  timeout: () => timeout('10s'),
  deadLetter: () => deadLetter({ to: async () => {} }),
  correlation: () => correlation(),
  transactional: () => transactional(memory()) as Middleware,
}

const Placed = event<{ n: number }>('order.placed')
const unhandled: unknown[] = []
const onUnhandled = (reason: unknown) => unhandled.push(reason)

beforeEach(() => {
  unhandled.length = 0
  process.on('unhandledRejection', onUnhandled)
})
afterEach(() => {
  process.off('unhandledRejection', onUnhandled)
  expect(unhandled).toEqual([])
})

describe.each(Object.keys(MIDDLEWARE))('%s around a handler that throws', (name) => {
  test.each(HOSTILE)('%s: it is charged to its own message', async (_, make) => {
    const [bad, good] = [1, 2].map((n) => encodeData(Placed({ n })))
    const source = scriptedSource([[bad!, good!]], { features: { redelivers: true } })
    const router = new Router('billing').use(MIDDLEWARE[name]!()).on(Placed, async ({ data }) => {
      if (data.n === 1) throw make()
    })
    const consumer = router.consume(source)
    await consumer.runOnce()
    await consumer.stop()
    expect([bad, good].map((message) => source.settlementOf(message!.id))).toMatchObject([
      { kind: 'retry', charged: true },
      { kind: 'done' },
    ])
  })
})
