import { describe, expect, test } from 'vitest'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Store, stop } from './support.ts'

type Then = (ok: () => void, no: (error: unknown) => void) => void

const thenable = (then: Then): object => Object.defineProperty({}, 'then', { value: then })

/** What foreign promises do that promises of the language never do. */
const FOREIGN: Record<string, Then> = {
  'calls back twice': (ok) => {
    ok()
    ok()
  },
  'calls back again later': (ok) => {
    ok()
    queueMicrotask(ok)
    setImmediate(ok)
  },
  'calls back both ways': (ok, no) => {
    ok()
    no(new Error('both'))
  },
  'calls back and throws': (ok) => {
    ok()
    throw new Error('then threw')
  },
}

const fail = (): never => {
  throw new Error('then failed')
}

type Given = { message: { id: string } }

for (const [what, limits] of Object.entries({
  'without a time-out': { timeout: false },
  'with a time-out': { timeout: 5000 },
} as const)) {
  describe(`a handler returns a foreign thenable, ${what}`, () => {
    test.each(Object.keys(FOREIGN))('that %s: no other message is settled for it', async (name) => {
      const clock = new FakeClock()
      const store = new Store(clock).addMany(4)
      const others = deferred()
      const each = ({ message }: Given) => (message.id === 'm0' ? thenable(FOREIGN[name]!) : others.promise)
      const flow = flowOf(clock, store, { each }, { concurrency: 1, ...limits })
      await flow.start()
      await clock.until(() => store.in('done').includes('m0'))
      // The next one has the same call, and its handler has not come back.
      await new Promise(setImmediate)
      await clock.advance(100)
      expect(store.settlements.map(({ id, settlement }) => `${id} ${settlement.kind}`)).toEqual(['m0 done'])
      others.resolve()
      await clock.until(() => store.in('done').length === 4)
      expect(store.settlements).toHaveLength(4)
      await stop(clock, flow)
    })

    test.each([
      ['whose then throws', thenable(fail)],
      ['whose then cannot be read', Object.defineProperty({}, 'then', { get: fail })],
      ['that is a Proxy of a promise', new Proxy(Promise.resolve(), {})],
      ['that only looks like a promise', Object.create(Promise.prototype)],
    ])('%s: its message has failed, and the others go on', async (_, given) => {
      const clock = new FakeClock()
      const store = new Store(clock).addMany(20)
      const each = ({ message }: Given) => (message.id === 'm0' ? given : undefined)
      const flow = flowOf(clock, store, { each }, { concurrency: 2, retry: { attempts: 2 }, ...limits })
      await flow.start()
      await clock.until(() => store.in('done').length === 19 && store.in('dead').length === 1)
      expect(store.of('m0')).toEqual(['retry', 'dead'])
      await stop(clock, flow)
    })
  })
}

test('a publisher returns a foreign thenable that calls back twice: each batch has its own outcomes', async () => {
  const clock = new FakeClock()
  const store = new Store(clock).addMany(4)
  const others = deferred<{ kind: 'ok' }[]>()
  let calls = 0
  const twice: Then = (ok) => {
    const answer = ok as unknown as (outcomes: unknown) => void
    answer([{ kind: 'ok' }])
    answer([{ kind: 'ok' }])
  }
  const batch = () => (calls++ === 0 ? (thenable(twice) as never) : others.promise)
  const flow = flowOf(clock, store, { batch, size: 1, ordered: false }, { concurrency: 1 })
  await flow.start()
  await clock.until(() => store.in('done').length === 1)
  await clock.advance(100)
  expect(store.settlements).toHaveLength(1)
  others.resolve([{ kind: 'ok' }])
  await clock.until(() => store.in('done').length === 4)
  await stop(clock, flow)
})

test('what follows a handler answers with a Proxy of a promise: the message has failed, and the others go on', async () => {
  const clock = new FakeClock()
  const store = new Store(clock).addMany(20)
  const each = ({ message }: Given) => message.id
  const after = (id: unknown) => (id === 'm0' ? new Proxy(Promise.resolve(), {}) : undefined)
  const flow = flowOf(clock, store, { each, after }, { retry: { attempts: 2 } })
  await flow.start()
  await clock.until(() => store.in('done').length === 19 && store.in('dead').length === 1)
  await stop(clock, flow)
})
