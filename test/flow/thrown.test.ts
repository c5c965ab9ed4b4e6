import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { type Outcome, publisherOf } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { HOSTILE, HOSTILE_REJECTS } from '../support/hostile.ts'
import { flowOf, type Held, Store, stop } from './support.ts'

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

describe('what is hard to read', () => {
  it.each(HOSTILE)('%s: thrown by a handler, is charged to its message, and no worker is lost', async (_, make) => {
    const { store, stopped } = await run((message) => {
      if (message.startsWith('bad')) throw make()
    })
    expect(store.in('done')).toEqual(['good0', 'good1'])
    expect(store.in('dead')).toEqual(['bad0', 'bad1', 'bad2'])
    await stopped()
  })

  it.each(HOSTILE)('%s: thrown by a publish function, is charged to its message', async (_, make) => {
    const publisher = publisherOf(async ({ id }) => {
      if (id.startsWith('bad')) throw make()
    })
    const { store, stopped } = await runBatch((messages, signal) => publisher.publish(messages, signal))
    expect(store.in('done')).toEqual(['good0', 'good1'])
    expect(store.in('dead')).toEqual(['bad0', 'bad1', 'bad2'])
    await stopped()
  })

  it.each(HOSTILE)('%s: in the outcome of a foreign publisher, is charged to its message', async (_, make) => {
    const { store, stopped } = await runBatch(async (messages) =>
      messages.map(({ id }): Outcome => (id.startsWith('bad') ? { kind: 'failed', error: make() } : { kind: 'ok' })),
    )
    expect(store.in('done')).toEqual(['good0', 'good1'])
    expect(store.in('dead')).toEqual(['bad0', 'bad1', 'bad2'])
    await stopped()
  })

  it.each([
    ['nothing', () => undefined],
    ['null', () => null],
    ['a kind there is not', () => ({ kind: 'okay' })],
    ['what throws when it is read', () => new Proxy({}, { get: () => JSON.parse('{') })],
  ])('%s: in place of an outcome, is charged to its message', async (_, make) => {
    const { store, stopped } = await runBatch(async (messages) =>
      messages.map(({ id }) => (id.startsWith('bad') ? (make() as Outcome) : { kind: 'ok' })),
    )
    expect(store.in('done')).toEqual(['good0', 'good1'])
    expect(store.in('dead')).toEqual(['bad0', 'bad1', 'bad2'])
    await stopped()
  })

  it.each(HOSTILE_REJECTS)('%s: is dead at once', async (_, make) => {
    const { store, stopped } = await run((message) => {
      if (message.startsWith('bad')) throw make()
    })
    expect(store.of('bad0')).toEqual(['dead'])
    await stopped()
  })

  it('a pause that no store can hold is one of a year', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b').add('c')
    const pauses = [1e18, Number.NaN, -1]
    const batch = async (held: readonly Held[]): Promise<Outcome[]> =>
      held.map((_, i) => ({ kind: 'failed', error: new Error('later'), after: pauses[i]! }))
    const flow = flowOf(clock, store, { batch, size: 3, ordered: false })
    await flow.runOnce()
    const after = store.settlements.map(({ settlement }) =>
      settlement.kind === 'retry' ? settlement.after : undefined,
    )
    expect(after).toEqual([365 * 86_400_000, 1000, 1000])
    await stop(clock, flow)
  })
})

/** Two attempts for each: three that are bad, and two that are not. One at a time, so that a lost worker is missed. */
async function run(handle: (id: string) => void) {
  const each = async ({ message }: Held) => handle(message.id)
  return started({ each })
}

async function runBatch(
  publish: (messages: readonly Held['message'][], signal: AbortSignal) => Promise<readonly Outcome[]>,
) {
  const batch = (held: readonly Held[], signal: AbortSignal) =>
    publish(
      held.map(({ message }) => message),
      signal,
    )
  return started({ batch, size: 2, ordered: false })
}

async function started(step: Parameters<typeof flowOf>[2]) {
  const clock = new FakeClock()
  const store = new Store(clock).add('bad0').add('good0').add('bad1').add('bad2').add('good1')
  const flow = flowOf(clock, store, step, { concurrency: 1, retry: { attempts: 2 } })
  await flow.start()
  await clock.until(() => store.in('done').length + store.in('dead').length === 5)
  return { store, stopped: () => stop(clock, flow) }
}
