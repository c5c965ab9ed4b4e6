import { describe, expect, onTestFinished, test } from 'vitest'
import { Flow, type Worker } from '../../src/flow/index.ts'
import { Relay, type RelayOptions } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'

/** A worker that waits for another, and what it must say of it. */
interface Waits {
  readonly worker: Worker
  readonly reason: string | RegExp
  /** Ends what it waits for. */
  free(): Promise<void>
}

async function relays(clock: FakeClock, first: Partial<RelayOptions>, second: Partial<RelayOptions>) {
  const db = memory({ clock })
  const make = (more: Partial<RelayOptions>) => {
    const relay = new Relay({ from: db.outbox, to: async () => {}, clock, ...more }) as unknown as Worker
    onTestFinished(() => relay.stop())
    return relay
  }
  const holder = make(first)
  await holder.start()
  await clock.settle()
  return { worker: make(second), free: () => holder.stop() }
}

const KINDS: Record<string, (clock: FakeClock) => Promise<Waits>> = {
  'a flow whose source lets another read': async (clock) => {
    let mine = false
    const from = {
      name: 's',
      features: {},
      open: async () => {
        if (mine) throw new Error('it is ours, and away')
        return undefined
      },
      waiting: () => ({ reason: 'another owns it: host:1', until: new Date(clock.now() + 5000) }),
    }
    const worker = new Flow({ name: 'f', from, step: { each: () => {} }, clock, poll: 1000 }) as unknown as Worker
    onTestFinished(() => worker.stop())
    return {
      worker,
      reason: 'another owns it: host:1',
      free: async () => {
        mine = true
      },
    }
  },
  'a relay whose outbox another reads': async (clock) => ({
    ...(await relays(clock, {}, {})),
    reason: /another relay owns it: .+, until .+Z unless it is renewed/,
  }),
  'a relay kept out by relays that read in another way': async (clock) => ({
    ...(await relays(clock, { reader: 'owner' }, { reader: 'lease' })),
    reason: /it reads as owner\/1, and this relay as lease/,
  }),
  'a relay with a long lease that is kept out': async (clock) => ({
    ...(await relays(clock, { reader: 'owner', lease: '10m' }, { reader: 'lease', lease: '10m' })),
    reason: /it reads as owner\/1, and this relay as lease/,
  }),
}

describe.each(Object.entries(KINDS))('%s', (_, make) => {
  test('says for what within five seconds, and only once', async () => {
    const clock = new FakeClock()
    const { worker, reason, free } = await make(clock)
    const recorder = recordTelemetry(['worker.waiting'])
    onTestFinished(() => recorder.stop())
    await worker.start()
    await clock.advance(2900)
    expect(recorder.events, 'a short wait is part of every deploy').toEqual([])
    await clock.advance(2100)
    const told = recorder.of('worker.waiting')
    const text = typeof reason === 'string' ? reason : expect.stringMatching(reason)
    expect(told).toEqual([{ worker: expect.any(String), reason: text, waitedFor: expect.any(Number) }])
    expect(told[0]!.waitedFor).toBeGreaterThanOrEqual(3000)
    await clock.advance(120_000)
    expect(recorder.events, 'once').toHaveLength(1)
    await free()
    await clock.advance(5000)
    expect(worker.status().state).not.toBe('waiting')
    expect(recorder.events).toHaveLength(1)
  })
})
