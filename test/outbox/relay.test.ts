import { describe, expect, test } from 'vitest'
import { encodeData, type RawMessage } from '../../src/core/index.ts'
import type { Source } from '../../src/flow/index.ts'
import { event, Relay, type RelayOptions } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { collector, FakeClock, recordTelemetry, scriptedSource } from '../../src/testing/index.ts'
import { eventually } from '../support/wait.ts'

const Placed = event<{ n: number }>('order.placed')

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

const message = (): RawMessage => encodeData(Placed({ n: 1 }))

/** An outbox whose shares the test decides. */
function outboxOf(assignment: () => Promise<readonly Source[]>): RelayOptions['from'] {
  return { name: 'shared', reader: () => ({ assignment, close: async () => {} }) } as never
}

describe('a round', () => {
  test('that could not begin does not keep the next from beginning', async () => {
    let there = false
    const start = async () => {
      if (!there) throw Object.assign(new Error('nobody listens'), { code: 'ECONNREFUSED' })
    }
    const relay = new Relay({ from: scriptedSource([[message()]]), to: { ...collector(), start } })
    await expect(relay.runOnce()).rejects.toThrow('nobody listens')
    there = true
    expect(await relay.runOnce()).toMatchObject({ done: 1 })
    await relay.stop()
  })

  test('of one part that fails costs the others nothing', async () => {
    const broken = scriptedSource<RawMessage>([[new Error('no table')]], { name: 'broken' })
    const whole = scriptedSource([[message()]], { name: 'whole' })
    const sink = collector()
    const relay = new Relay({ from: outboxOf(async () => [broken, whole]), to: sink })
    await expect(relay.runOnce()).rejects.toThrow('no table')
    expect(sink.messages).toHaveLength(1)
    await relay.stop()
  })
})

describe('a relay that shares an outbox', () => {
  test('says that it lives while what is in flight of a part that left takes its time', async () => {
    const clock = new FakeClock()
    const [stays, leaves] = [scriptedSource<RawMessage>([]), scriptedSource([[message()]])]
    const looks: number[] = []
    let mine: Source[] = [stays, leaves]
    const assignment = async () => {
      looks.push(clock.monotonic())
      return mine
    }
    const publish = () => new Promise<never>(() => {})
    const to = { name: 'silent', features: {}, publish }
    const relay = new Relay({ from: outboxOf(assignment), to, lease: '3s', grace: '10s', clock })
    await relay.start()
    await clock.advance(1500)
    expect(leaves.unsettled).toBe(1)
    mine = [stays]
    await clock.advance(3000)
    // It comes back while its flow still drains: that one ends first.
    mine = [stays, leaves]
    await clock.advance(4000)
    expect(leaves.opened).toBe(1)
    expect(looks).toHaveLength(9)
    await clock.until(() => leaves.opened === 2)
    const stopping = relay.stop()
    await clock.advance(60_000)
    await stopping
  })

  test('stops in time although a look at its shares never ends, and its flows do', async () => {
    const clock = new FakeClock()
    const source = scriptedSource<RawMessage>([])
    let looks = 0
    const assignment = () => (looks++ === 0 ? Promise.resolve([source]) : new Promise<never>(() => {}))
    const relay = new Relay({ from: outboxOf(assignment), to: async () => {}, lease: '3s', clock })
    await relay.start()
    await clock.advance(2000)
    expect(looks).toBe(2)
    const stopping = relay.stop()
    await clock.advance(1000)
    await stopping
    expect(source.closed).toBe(1)
  })
})
