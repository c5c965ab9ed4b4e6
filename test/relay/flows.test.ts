import { expect, test } from 'vitest'
import { event, Relay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { collector, recordTelemetry } from '../../src/testing/index.ts'
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
  const telemetry = recordTelemetry(['warning'])
  const relay = new Relay({ from: source, to: async () => {}, lease: 150, poll: '10ms', random })
  await relay.start()
  const warning = await telemetry.next('warning')
  expect(warning).toEqual({ where: 'relay stream', message: expect.stringMatching(/begins anew: .*no luck/) })
  await expect.poll(() => opened).toBeGreaterThan(1)
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
