import { describe, expect, it } from 'vitest'
import { Unavailable } from '../../src/core/index.ts'
import { Window } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Gate, type Held, record, Store, stop } from './support.ts'

describe('the window', () => {
  it('closes to one at a collective failure and doubles with what is settled', () => {
    const window = new Window(10)
    expect(window.failedTogether(window.generation)).toBe(true)
    expect(window.size).toBe(1)
    window.widen()
    expect(window.size).toBe(1) // nothing has arrived since
    for (const size of [2, 4, 8, 10, 10]) {
      window.arrived(1, window.generation, 0)
      window.widen()
      expect(window.size).toBe(size)
    }
  })

  it('counts one outage once, however many calls it fails', () => {
    const window = new Window(10)
    const { generation } = window
    expect([1, 2, 3].map(() => window.failedTogether(generation))).toEqual([true, false, false])
    expect(window.failures).toBe(1)
  })

  it('takes no success from before for a proof: in an outage nobody is charged', () => {
    const window = new Window(10)
    const before = window.generation
    window.failedTogether(before)
    expect(window.failedAlone('a')).toBe(false)
    window.arrived(5, before, 0)
    expect(window.failedAlone('b')).toBe(false)
    expect(window.failedAlone('a')).toBe(false)
  })

  it('charges one that fails alone again after others have arrived', () => {
    const window = new Window(10)
    expect(window.failedAlone('a')).toBe(false)
    expect(window.isSuspect('a')).toBe(true)
    window.arrived(1, window.generation, 0)
    expect(window.failedAlone('a')).toBe(true)
    expect(window.failedAlone('a')).toBe(false)
    window.acquit('a')
    expect(window.isSuspect('a')).toBe(false)
  })

  it('counts one outage once, however many fail of it', () => {
    const window = new Window(10)
    const { generation } = window
    expect(window.failedTogether(generation)).toBe(true)
    expect(window.failedTogether(generation)).toBe(false)
    expect(window.failures).toBe(1)
    expect(window.failedTogether(window.generation)).toBe(true)
    expect(window.failures).toBe(2)
  })

  it('charges a marked one that fails when one has arrived that went out since it was marked', () => {
    const window = new Window(10)
    window.dispatched = 5
    window.mark('a')
    expect(window.isMarked('a')).toBe(true)
    // One that went out before proves nothing about now.
    window.arrived(1, window.generation, 4)
    window.tries('a')
    expect(window.failedBeside('a')).toBe(false)
    // Nor does one that arrives while it is out: the outage may just have ended.
    window.arrived(1, window.generation, 5)
    expect(window.failedBeside('a')).toBe(false)
    expect(window.isProven('a')).toBe(true)
    window.dispatched = 7
    window.tries('a')
    expect(window.failedBeside('a')).toBe(true)
    // For the next charge another must arrive.
    window.tries('a')
    expect([window.failedBeside('a'), window.failedAgain('a')]).toEqual([false, false])
    window.acquit('a')
    expect(window.isMarked('a')).toBe(false)
  })

  it('lets more marked ones out at once while they are charged, and one by one when one of them arrives', () => {
    const window = new Window(10)
    let marked = 0
    expect(window.markedAtOnce).toBe(1)
    for (const atOnce of [2, 4, 8, 10, 10]) {
      const id = `m${marked++}`
      window.mark(id)
      window.arrived(1, window.generation, window.dispatched++)
      window.tries(id)
      expect(window.failedBeside(id)).toBe(true)
      expect(window.markedAtOnce).toBe(atOnce)
    }
    window.cleared()
    expect(window.markedAtOnce).toBe(1)
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
    const killed = new Set<string>()
    let innocents = 0
    const each = async ({ message }: Held) => {
      inside.add(message.id)
      if (message.id === 'poison') together.push([...inside])
      await clock.sleep(10)
      inside.delete(message.id)
      // It takes the connection of all of them with it.
      if (message.id === 'poison') for (const id of inside) killed.add(id)
      if (message.id === 'poison' || killed.delete(message.id)) throw new Unavailable('connection closed')
    }
    const flow = flowOf(clock, store, { each }, { concurrency: 5, retry: { attempts: 3 }, poll: 5, maxPoll: 5 })
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

  it('one that was out beside it and arrives shows that the destination is there: no pause, and nobody is charged', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a').add('b').add('c')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2 })
    await flow.start()
    await clock.settle()
    gate.end('b', new Unavailable('away'))
    await clock.settle()
    expect(gate.inside, 'nobody goes out before it is known').toEqual(['a'])
    gate.end('a')
    await clock.settle()
    expect(gate.inside, 'it goes when one has arrived that went out since').toEqual(['c'])
    gate.end('c')
    await clock.settle()
    expect(gate.inside).toEqual(['b'])
    gate.endAll()
    await clock.until(() => store.in('done').length === 3)
    expect(telemetry.of('flow.paused')).toEqual([])
    expect(store.settlements).toHaveLength(3)
    await stop(clock, flow)
  })

  it('one that was out beside it and does not come back is not waited for longer than a second', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('a').add('b')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 2, timeout: '1h' })
    await flow.start()
    await clock.settle()
    gate.end('b', new Unavailable('away'))
    await clock.advance(1000)
    expect(telemetry.of('flow.paused')).toMatchObject([{ failures: 1 }])
    gate.end('a')
    await clock.until(() => gate.inside.includes('b'))
    gate.endAll()
    await clock.until(() => store.in('done').length === 2)
    await stop(clock, flow)
  })
})

describe('some fail as if the destination were away, while others arrive', () => {
  it('one is not charged for one that is new and fails at the same time: that may be what kills them', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('victim').add('a').add('b').add('poison').add('c')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 3, poll: 1, maxPoll: 1 })
    await flow.start()
    await clock.settle()
    const away = () => new Unavailable('away')
    gate.end('victim', away())
    gate.end('a')
    await clock.settle()
    expect(gate.inside).toEqual(['b', 'poison', 'c'])
    // It went out since, and arrives: so the victim goes again, with the others.
    gate.end('c')
    await clock.settle()
    expect(gate.inside).toEqual(['b', 'poison', 'victim'])
    gate.end('victim', away())
    gate.end('poison', away())
    gate.end('b')
    await clock.settle()
    expect(store.settlements.map(({ settlement }) => settlement.kind)).not.toContain('retry')
    await clock.until(() => {
      gate.endAll()
      return store.in('done').length === 5
    })
    await stop(clock, flow)
  })

  const handling = 20
  const isBad = (id: string, every: number) => Number(id.slice(1)) % every === 0

  it.each([
    // One in ten, half of them; how many of the others arrive in how many seconds. Without failures it is 500 a second.
    { what: 'each', every: 10, seconds: 6, atLeast: 2400 },
    { what: 'each', every: 2, seconds: 6, atLeast: 800 },
    { what: 'batch', every: 10, seconds: 4, atLeast: 1800 },
    { what: 'batch', every: 2, seconds: 20, atLeast: 600 },
  ])('$what, one in $every: the others go on, and those that fail are charged', async (given) => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(3000)
    const down = { kind: 'down' as const, error: new Unavailable('no such table') }
    const each = async ({ message }: Held) => {
      if (isBad(message.id, given.every)) throw down.error
      await clock.sleep(handling)
    }
    const batch = async (deliveries: readonly Held[]) => {
      await clock.sleep(handling)
      return deliveries.map(({ message }) => (isBad(message.id, given.every) ? down : { kind: 'ok' as const }))
    }
    const step = given.what === 'each' ? { each } : { batch, size: 10, ordered: false }
    const flow = flowOf(clock, store, step, { poll: 5, maxPoll: 50, retry: { attempts: 3 } })
    await flow.start()
    await clock.advance(given.seconds * 1000)
    expect(store.in('done').length).toBeGreaterThan(given.atLeast)
    const charged = store.rows.filter(({ attempts }) => attempts > 0).map(({ message }) => message.id)
    expect(charged.length).toBeGreaterThan(100)
    expect(charged.filter((id) => !isBad(id, given.every))).toEqual([])
    const suspected = telemetry.of('message.suspected')
    expect(suspected.length).toBeGreaterThanOrEqual(charged.length)
    for (const one of suspected) expect(one).toMatchObject({ attempt: expect.any(Number), topic: 'thing.happened' })
    await clock.until(() => store.in('dead').length > 100, 120_000)
    await stop(clock, flow)
  })
})

describe('a session after a crash', () => {
  it('records each lone message before it goes out, and widens only with what is settled', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { afterCrash: true }).addMany(6)
    const recorded = deferred()
    let first = true
    store.before.recordProbe = () => {
      if (!first) return undefined
      first = false
      return recorded.promise
    }
    const written = deferred()
    store.before.settle = () => written.promise
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 4 })
    await flow.start()
    await clock.advance(1000)
    expect(gate.order).toEqual([])
    recorded.resolve()
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
    const probes = store.events.flatMap((event) => (event.kind === 'probe' ? [event.id] : []))
    expect(probes).toEqual(['m0', 'm1', 'm2'])
    gate.endAll()
    await clock.settle()
    gate.endAll()
    await stop(clock, flow)
  })

  it('whose record fails dispatches nothing, charges nobody, and tries again after a pause', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { afterCrash: true }).add('a').add('b')
    let failures = 3
    store.before.recordProbe = () => {
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

  it('that is lost or stopped while it records dispatches nothing', async () => {
    for (const how of ['stop', 'lose'] as const) {
      const clock = new FakeClock()
      const store = new Store(clock, { afterCrash: true }).add('a')
      const recorded = deferred()
      store.before.recordProbe = () => recorded.promise
      const gate = new Gate()
      const flow = flowOf(clock, store, { each: gate.each })
      await flow.start()
      await clock.settle()
      const stopping = how === 'stop' ? flow.stop() : store.lose()
      recorded.resolve()
      await clock.settle()
      expect(gate.order, how).toEqual([])
      if (how === 'stop') expect(store.of('a')).toEqual(['release'])
      await stopping
      await stop(clock, flow)
    }
  })
})
