import { describe, expect, it } from 'vitest'
import { Unavailable } from '../../src/core/index.ts'
import { Window } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Gate, type Held, record, Store, stop } from './support.ts'

describe('the window', () => {
  it('closes to one at a collective failure and doubles with what is settled', () => {
    const window = new Window(10)
    expect(window.failedTogether(window.era)).toBe(true)
    expect(window.size).toBe(1)
    window.widen()
    expect(window.size).toBe(1) // nothing has arrived since
    for (const size of [2, 4, 8, 10, 10]) {
      window.arrived(1, window.era)
      window.widen()
      expect(window.size).toBe(size)
    }
  })

  it('counts one outage once, however many calls it fails', () => {
    const window = new Window(10)
    const { era } = window
    expect([1, 2, 3].map(() => window.failedTogether(era))).toEqual([true, false, false])
    expect(window.failures).toBe(1)
  })

  it('takes no success from before for a proof: in an outage nobody is charged', () => {
    const window = new Window(10)
    const before = window.era
    window.failedTogether(before)
    expect(window.failedAlone('a')).toBe(false)
    window.arrived(5, before)
    expect(window.failedAlone('b')).toBe(false)
    expect(window.failedAlone('a')).toBe(false)
  })

  it('charges one that fails alone again after others have arrived', () => {
    const window = new Window(10)
    expect(window.failedAlone('a')).toBe(false)
    expect(window.isSuspect('a')).toBe(true)
    window.arrived(1, window.era)
    expect(window.failedAlone('a')).toBe(true)
    expect(window.failedAlone('a')).toBe(false)
    window.acquit('a')
    expect(window.isSuspect('a')).toBe(false)
  })

  it('remembers no more than a thousand suspects', () => {
    const window = new Window(10)
    for (let i = 0; i <= 1000; i++) window.failedAlone(`m${i}`)
    expect(window.suspects).toBe(1000)
    expect(window.isSuspect('m0')).toBe(false)
    expect(window.isSuspect('m1000')).toBe(true)
  })
})

describe('after a collective failure', () => {
  it('what was in flight goes out one by one, in its old order, before anything else', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(8)
    const order: string[] = []
    let up = false
    const each = async ({ message }: Held) => {
      order.push(message.id)
      if (!up) throw new Unavailable('away')
    }
    const flow = flowOf(clock, store, { each }, { concurrency: 4 })
    await flow.start()
    await clock.settle()
    up = true
    order.length = 0
    await clock.until(() => store.in('done').length === 8)
    expect(order).toEqual(store.rows.map((row) => row.message.id))
    await stop(clock, flow)
  })

  it('one that failed alone goes alone again, and never with others', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('poison')
    const together: string[][] = []
    const inside = new Set<string>()
    let innocents = 0
    const each = async ({ message }: Held) => {
      inside.add(message.id)
      if (message.id === 'poison') together.push([...inside])
      await clock.sleep(10)
      inside.delete(message.id)
      if (message.id === 'poison' || inside.has('poison')) throw new Unavailable('connection closed')
    }
    const flow = flowOf(clock, store, { each }, { concurrency: 5, retry: { attempts: 3 }, poll: { base: 5, max: 5 } })
    await flow.start()
    await clock.until(() => {
      if (store.in('ready').length < 10) store.add(`i${innocents++}`)
      return store.in('dead').length === 1
    })
    expect(store.in('dead')).toEqual(['poison'])
    // Once with others, before anybody knew; then always alone.
    expect(together.slice(1).every((ids) => ids.length === 1)).toBe(true)
    expect(together.length).toBeGreaterThan(3)
    expect(telemetry.of('message.suspected').map(({ id }) => id)).toEqual(['poison', 'poison', 'poison'])
    expect(store.rows.filter((row) => row.attempts > 0).map((row) => row.message.id)).toEqual(['poison'])
    await stop(clock, flow)
  })

  it('an ok that comes late from before the failure does not end the pause', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a').add('b').add('c')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2 })
    await flow.start()
    await clock.settle()
    gate.end('b', new Unavailable('away'))
    await clock.settle()
    gate.end('a')
    await clock.advance(199)
    expect(gate.inside).toEqual([])
    await clock.advance(1)
    expect(gate.inside).toEqual(['b'])
    gate.endAll()
    await stop(clock, flow)
  })
})

describe('a cautious session', () => {
  it('notes each lone message before it goes out, and widens only with what is settled', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { cautious: true }).addMany(6)
    const noted = deferred()
    let first = true
    store.before.note = () => {
      if (!first) return undefined
      first = false
      return noted.promise
    }
    const written = deferred()
    store.before.settle = () => written.promise
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 4 })
    await flow.start()
    await clock.advance(1000)
    expect(gate.order).toEqual([])
    noted.resolve()
    await clock.settle()
    expect(gate.inside).toEqual(['m0'])
    gate.end('m0')
    await clock.settle()
    // Done, but the source does not know: a crash now would bring it back.
    expect(gate.inside).toEqual(['m1'])
    gate.end('m1')
    await clock.settle()
    expect(gate.inside).toEqual(['m2'])
    written.resolve()
    await clock.settle()
    gate.end('m2')
    await clock.settle()
    expect(gate.inside.length).toBeGreaterThan(1)
    const notes = store.events.flatMap((event) => (event.kind === 'note' ? [event.id] : []))
    expect(notes).toEqual(['m0', 'm1', 'm2'])
    gate.endAll()
    await clock.settle()
    gate.endAll()
    await stop(clock, flow)
  })

  it('whose note fails dispatches nothing, charges nobody, and tries again after a pause', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { cautious: true }).add('a').add('b')
    let failures = 3
    store.before.note = () => {
      if (failures-- > 0) throw new Error('no connection')
    }
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each })
    await flow.start()
    await clock.settle()
    expect(gate.order).toEqual([])
    await clock.until(() => gate.inside.length > 0)
    expect(gate.inside).toEqual(['a'])
    gate.endAll()
    await clock.settle()
    gate.endAll()
    await clock.settle()
    expect(store.in('done')).toEqual(['a', 'b'])
    await stop(clock, flow)
  })

  it('that is lost or stopped while it notes dispatches nothing', async () => {
    for (const how of ['stop', 'lose'] as const) {
      const clock = new FakeClock()
      const store = new Store(clock, { cautious: true }).add('a')
      const noted = deferred()
      store.before.note = () => noted.promise
      const gate = new Gate()
      const flow = flowOf(clock, store, { each: gate.each })
      await flow.start()
      await clock.settle()
      const stopping = how === 'stop' ? flow.stop() : store.lose()
      noted.resolve()
      await clock.settle()
      expect(gate.order, how).toEqual([])
      if (how === 'stop') expect(store.of('a')).toEqual(['release'])
      await stopping
      await stop(clock, flow)
    }
  })
})
