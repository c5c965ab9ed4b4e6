import { expect, test } from 'vitest'
import { event, Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { collector, FakeClock, recordTelemetry } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'

test('a flow that could not go on is told and begun anew, rather than missed by nobody', async () => {
  let opened = 0
  const source = {
    name: 'stream',
    features: {},
    open: async () => {
      if (opened++ === 0) throw new Error('not yet')
      return undefined
    },
  }
  // A user's random that throws ends the flow that asked it: nothing else reaches the outside of a flow.
  const random = {
    next: () => {
      throw new Error('no luck')
    },
    fill: () => {},
  }
  const clock = new FakeClock()
  const telemetry = recordTelemetry(['worker.restarting'])
  const relay = new Relay({ from: source, to: async () => {}, random, clock })
  await relay.start()
  const told = await telemetry.next('worker.restarting')
  expect(told).toMatchObject({ worker: 'stream', parent: 'relay stream', error: { message: 'no luck' }, failures: 1 })
  const [flow] = relay.status().children!.filter(({ name }) => name === 'stream')
  expect(flow).toMatchObject({ state: 'failing', reason: 'Error: no luck', retryAt: expect.any(Date) })
  expect(relay.status()).toMatchObject({ state: 'failing', reason: 'stream: Error: no luck' })
  await clock.advance(told.retryIn)
  expect(opened).toBe(2)
  await relay.stop()
  telemetry.stop()
})

test('a relay that was run once reads on when it is started', async () => {
  const db = memory()
  const sink = collector()
  const Placed = event<{ n: number }>('order.placed')
  const relay = new Relay({ from: db.outbox, to: sink })
  try {
    await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 })))
    expect(await relay.runOnce()).toMatchObject({ done: 1 })
    await relay.start()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 2 })))
    await eventually('the second event to arrive', () => sink.messages.length === 2)
  } finally {
    await relay.stop()
  }
})
