import { describe, expect, it } from 'vitest'
import { Reject, Unavailable } from '../../src/core/index.ts'
import { OK, type Outcome } from '../../src/flow/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, Gate, type Held, Store, stop } from './support.ts'

const failed = (text = 'no'): Outcome => ({ kind: 'failed', error: new Error(text) })
const down: Outcome = { kind: 'down', error: new Unavailable('away') }

describe('order per key', () => {
  it('has one of a key in flight, others of other keys beside it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a').add('a2', 'a').add('b1', 'b').add('a3', 'a').add('n1').add('n2')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 10 })
    await flow.start()
    await clock.settle()
    expect(gate.inside).toEqual(['a1', 'b1', 'n1', 'n2'])
    gate.end('a1')
    await clock.settle()
    expect(gate.inside).toEqual(['b1', 'n1', 'n2', 'a2'])
    gate.end('a2')
    await clock.settle()
    expect(gate.inside).toEqual(['b1', 'n1', 'n2', 'a3'])
    gate.endAll()
    await stop(clock, flow)
  })

  it('goes on at the outcome, not at the settlement', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a').add('a2', 'a')
    store.before.settle = () => clock.sleep(10_000)
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each })
    await flow.start()
    await clock.settle()
    gate.end('a1')
    await clock.settle()
    expect(gate.order).toEqual(['a1', 'a2'])
    gate.endAll()
    await stop(clock, flow)
  })

  it('after a failure nothing later of the key goes out until the source was told; others flow', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a').add('a2', 'a').add('b1', 'b').add('b2', 'b')
    const told = deferred()
    store.before.settle = () => told.promise
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { concurrency: 5, buffer: { count: 50 } })
    await flow.start()
    await clock.settle()
    gate.end('a1', new Error('no'))
    await clock.settle()
    // More of the key comes in while the source does not know yet.
    store.add('a3', 'a').add('b3', 'b')
    await clock.advance(5000)
    gate.end('b1')
    await clock.settle()
    gate.end('b2')
    await clock.settle()
    expect(gate.order).toEqual(['a1', 'b1', 'b2', 'b3'])
    told.resolve()
    await clock.advance(100)
    expect(store.of('a2')).toEqual(['release'])
    expect(store.of('a3')).toEqual(['release'])
    await clock.until(() => gate.inside.includes('a1'))
    for (let i = 0; i < 6; i++) {
      gate.endAll()
      await clock.advance(1000)
    }
    expect(gate.order.filter((id) => id.startsWith('a'))).toEqual(['a1', 'a1', 'a2', 'a3'])
    await stop(clock, flow)
  })

  it('gives back what a take brings that began before the source was told', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a')
    const gate = new Gate()
    const flow = flowOf(clock, store, { each: gate.each }, { poll: 10, maxPoll: 10 })
    await flow.start()
    await clock.settle()
    // A slow take that looks at the table now, and answers after the retry of a1 is written.
    store.add('a2', 'a')
    const slow = deferred()
    const answer = deferred()
    const open = store.controller
    expect(open.signal.aborted).toBe(false)
    store.afterTake = () => {
      slow.resolve()
      return answer.promise
    }
    await clock.advance(10)
    await slow.promise
    gate.end('a1', new Error('no'))
    await clock.settle()
    expect(store.of('a1')).toEqual(['retry'])
    store.afterTake = undefined
    answer.resolve()
    await clock.settle()
    expect(gate.order).toEqual(['a1'])
    expect(store.of('a2')).toEqual(['release'])
    await clock.until(() => gate.inside.includes('a1'))
    gate.end('a1')
    await clock.advance(100)
    expect(gate.order).toEqual(['a1', 'a1', 'a2'])
    gate.endAll()
    await stop(clock, flow)
  })

  it('takes no more before the source knows that it has what was refused again: what stands behind that would overtake it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a')
    const gate = new Gate()
    const retry = { backoff: { min: 50, max: 50, jitter: 0 } }
    const flow = flowOf(clock, store, { each: gate.each }, { poll: 10, maxPoll: 10, retry })
    const told = [deferred(), deferred()]
    store.before.settle = () => told[store.batches.length]?.promise
    await flow.start()
    await clock.settle()
    gate.end('a1', new Error('no'))
    store.add('a2', 'a')
    await clock.advance(20)
    expect(store.row('a2').state).toBe('taken')
    told[0]!.resolve()
    await clock.settle()
    expect(store.of('a1')).toEqual(['retry'])
    // a1 is due, and a2 is still on its way back.
    store.add('a3', 'a')
    await clock.advance(200)
    told[1]!.resolve()
    for (let i = 0; i < 3; i++) {
      await clock.advance(100)
      gate.endAll()
    }
    expect(gate.order).toEqual(['a1', 'a1', 'a2', 'a3'])
    await stop(clock, flow)
  })

  it('keeps a failed one here, in front of its key, when the source cannot give it again', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).add('a1', 'a').add('a2', 'a').add('b1', 'b')
    const order: string[] = []
    const attempts: number[] = []
    const each = async (delivery: Held) => {
      order.push(delivery.message.id)
      if (delivery.message.id !== 'a1') return
      attempts.push(delivery.attempts)
      if (attempts.length < 3) throw new Error('not yet')
    }
    const flow = flowOf(clock, store, { each }, { retry: { backoff: { min: '1s', jitter: 0 } } })
    await flow.start()
    await clock.advance(2999)
    expect(order).toEqual(['a1', 'b1', 'a1'])
    await clock.advance(1)
    expect(order).toEqual(['a1', 'b1', 'a1', 'a1', 'a2'])
    expect(attempts).toEqual([0, 1, 2])
    expect(store.settlements.map(({ settlement }) => settlement.kind)).toEqual(['done', 'done', 'done'])
    await stop(clock, flow)
  })

  it('a dead one blocks its key, or lets it go on, as told', async () => {
    for (const deadKey of ['block', 'continue'] as const) {
      const clock = new FakeClock()
      const store = new Store(clock, { deadKey }).add('a1', 'a').add('a2', 'a').add('b1', 'b')
      const each = ({ message }: Held) => {
        if (message.id === 'a1') throw new Reject('never')
      }
      const flow = flowOf(clock, store, { each }, { retry: { deadKey } })
      await flow.start()
      await clock.advance(60_000)
      expect(store.in('dead'), deadKey).toEqual(['a1'])
      expect(store.in('done'), deadKey).toEqual(deadKey === 'block' ? ['b1'] : ['a2', 'b1'])
      expect(store.of('a2'), deadKey).toEqual(deadKey === 'block' ? ['release'] : ['done'])
      await stop(clock, flow)
    }
  })
})

/** A batch step that writes down what it was given, and answers what it is told by id. */
function batches(answers: Record<string, Outcome> = {}) {
  const calls: string[][] = []
  const batch = async (deliveries: readonly Held[]) => {
    calls.push(deliveries.map(({ message }) => message.id))
    return deliveries.map(({ message }) => answers[message.id] ?? OK)
  }
  return { calls, batch, answers }
}

describe('batches', () => {
  it('hold one of a key at most, unless the step is ordered: then a whole run', async () => {
    for (const ordered of [false, true]) {
      const clock = new FakeClock()
      const store = new Store(clock).add('a1', 'a').add('b1', 'b').add('a2', 'a').add('n').add('a3', 'a')
      const { calls, batch } = batches()
      const flow = flowOf(clock, store, { batch, size: 10, ordered }, { concurrency: 1 })
      await flow.start()
      await clock.settle()
      expect(calls).toEqual(ordered ? [['a1', 'a2', 'a3', 'b1', 'n']] : [['a1', 'b1', 'n'], ['a2'], ['a3']])
      await stop(clock, flow)
    }
  })

  it('are no larger than size, and as many at once as concurrency', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).addMany(100)
    const sizes: number[] = []
    let most = 0
    let now = 0
    const batch = async (deliveries: readonly Held[]) => {
      sizes.push(deliveries.length)
      most = Math.max(most, ++now)
      await clock.sleep(10)
      now--
      return deliveries.map(() => OK)
    }
    const flow = flowOf(clock, store, { batch, size: 20, ordered: false }, { concurrency: 2 })
    await flow.start()
    await clock.until(() => store.in('done').length === 100)
    expect(Math.max(...sizes)).toBe(20)
    expect(most).toBe(2)
    await stop(clock, flow)
  })

  it('of a run in which one failed, those after it are given back, uncharged and in order', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a1', 'a').add('a2', 'a').add('a3', 'a').add('b1', 'b')
    const { calls, batch, answers } = batches({ a2: failed(), a3: failed('not tried') })
    const flow = flowOf(clock, store, { batch, size: 10, ordered: true }, { concurrency: 1 })
    await flow.start()
    await clock.settle()
    expect(store.of('a1')).toEqual(['done'])
    expect(store.of('a2')).toEqual(['retry'])
    expect(store.of('a3')).toEqual(['release'])
    expect(store.row('a3').attempts).toBe(0)
    delete answers['a2']
    delete answers['a3']
    await clock.until(() => store.in('done').length === 4)
    expect(calls.slice(1).flat()).toEqual(['a2', 'a3'])
    await stop(clock, flow)
  })

  it('of a run in which one failed, those after it wait behind it where the source cannot give it again', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: {} }).add('a1', 'a').add('a2', 'a').add('a3', 'a').add('a4', 'a')
    const { calls, batch, answers } = batches({ a2: failed(), a3: failed() })
    const flow = flowOf(clock, store, { batch, size: 3, ordered: true }, { concurrency: 1 })
    await flow.start()
    await clock.settle()
    expect(calls).toEqual([['a1', 'a2', 'a3']])
    delete answers['a2']
    delete answers['a3']
    await clock.until(() => store.in('done').length === 4)
    expect(calls.flat()).toEqual(['a1', 'a2', 'a3', 'a2', 'a3', 'a4'])
    expect(store.settlements.find(({ id }) => id === 'a3')!.attempts).toBe(0)
    await stop(clock, flow)
  })

  it('of a run with a failure of its own and an outage behind it, nothing overtakes', async () => {
    for (const features of [{ redelivers: true, holdsKeys: true }, {}]) {
      const clock = new FakeClock()
      const store = new Store(clock, { features }).add('a1', 'a').add('a2', 'a').add('a3', 'a')
      const { calls, batch, answers } = batches({ a1: failed(), a2: down, a3: down })
      const flow = flowOf(clock, store, { batch, size: 3, ordered: true }, { concurrency: 1 })
      await flow.start()
      await clock.settle()
      delete answers['a2']
      delete answers['a3']
      await clock.advance(900)
      expect(calls).toEqual([['a1', 'a2', 'a3']])
      delete answers['a1']
      await clock.until(() => store.in('done').length === 3)
      expect(calls.slice(1).flat()).toEqual(['a1', 'a2', 'a3'])
      expect(store.rows.map((row) => row.attempts)).toEqual(features.redelivers ? [1, 0, 0] : [0, 0, 0])
      await stop(clock, flow)
    }
  })

  it('that are answered with too few outcomes, with no list or a throw fail as a whole, and charge nobody', async () => {
    const answers = [() => [OK], () => undefined, () => Promise.reject(new Error('boom'))]
    for (const answer of answers) {
      const clock = new FakeClock()
      const store = new Store(clock).add('a').add('b')
      let bad = true
      const batch = (async (deliveries: readonly Held[]) =>
        bad ? answer() : deliveries.map(() => OK)) as () => Promise<Outcome[]>
      const flow = flowOf(clock, store, { batch, size: 2, ordered: false }, { concurrency: 1 })
      await flow.start()
      await clock.settle()
      expect(store.settlements).toEqual([])
      bad = false
      await clock.until(() => store.in('done').length === 2)
      expect(store.settlements).toHaveLength(2)
      await stop(clock, flow)
    }
  })
})

describe('a hot key', () => {
  it.each([
    { what: 'each', ratio: 4 },
    { what: 'batch', ratio: 4 },
  ])(
    '$what: with nine of ten events it does not keep the others waiting, and its order holds',
    async ({ what, ratio }) => {
      const clock = new FakeClock()
      const store = new Store(clock, { features: { redelivers: true, holdsKeys: true, leavesOut: true } })
      store.addMany(2000, (i) => (i % 10 === 0 ? `k${i % 7}` : 'hot'))
      const order: string[] = []
      const handle = async (delivery: Held) => {
        await clock.sleep(5)
        order.push(delivery.message.id)
        return OK
      }
      const batch = (deliveries: readonly Held[]) => Promise.all(deliveries.map(handle))
      const step = what === 'each' ? { each: handle } : { batch, size: 10, ordered: false }
      const flow = flowOf(clock, store, step, { poll: 5, maxPoll: 5 })
      const began = clock.monotonic()
      await flow.start()
      const others = store.rows.filter(({ message }) => message.key !== 'hot')
      await clock.until(() => others.every(({ state }) => state === 'done'), 60_000)
      const othersTook = clock.monotonic() - began
      await clock.until(() => store.in('done').length === 2000, 60_000)
      const allTook = clock.monotonic() - began
      expect(othersTook * ratio).toBeLessThan(allTook)
      const hot = store.rows.filter(({ message }) => message.key === 'hot').map(({ message }) => message.id)
      expect(order.filter((id) => store.row(id).message.key === 'hot')).toEqual(hot)
      await stop(clock, flow)
    },
  )

  it('alone, is not asked for again and again while enough of it is here, nor is it kept waiting', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { features: { redelivers: true, holdsKeys: true, leavesOut: true } })
    // As a table says: there is something, whatever a take leaves out.
    let waits = 0
    store.wait = async (ms, signal) => {
      if (store.in('ready').length === 0 || ++waits > 1000) await clock.sleep(ms, signal)
    }
    store.addMany(500, () => 'hot')
    const each = () => clock.sleep(5)
    const flow = flowOf(clock, store, { each })
    await flow.start()
    await clock.until(() => store.in('done').length === 500, 2600)
    const inVain = store.events.filter((event) => event.kind === 'take' && event.given === 0)
    // Each 50 ms, and each time that it is taken again.
    expect(inVain.length).toBeLessThan(2500 / 50 + 100)
    await stop(clock, flow)
  })
})
