import { afterEach, describe, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { Reject } from '../../src/index.ts'
import { type AnySaga, decide, done, evolve, notDone, type SagaClient, saga } from '../../src/saga/index.ts'
import { begun } from '../../src/saga/state.ts'
import { deferred, inMemory } from './support.ts'

let world = inMemory()
const log: string[] = []
afterEach(async () => {
  await world.end()
  world = inMemory()
  log.splice(0)
})

const audit = { by: 'ann', note: 'because' }
const start = (runner: { client(one: never): unknown }, one: AnySaga, input: unknown = {}) =>
  world.db.withTransaction((tx) =>
    (runner.client(one as never) as SagaClient<unknown, unknown, unknown>).start(tx, input),
  )

/** A runner that is cut off in the middle of a step, as a process that is suspended or killed: it never comes back. */
async function cutOff(one: AnySaga) {
  const runner = world.runner([one])
  const id = await start(runner, one)
  const round = runner.runOnce()
  round.catch(() => {})
  await world.clock.settle()
  return { id, round, runner }
}

/** As another process would, which then dies. */
async function insert(one: AnySaga, wakeIn: number, runner: string | undefined) {
  const id = uuidv7()
  const state = decide(one.steps, begun(id, one.name), { type: 'begin' }).reduce(evolve, begun(id, one.name))
  const about = { type: one.name, definition: one.definition, aggregate: undefined, tenant: undefined }
  const made = { id, ...about, traceparent: undefined, input: '{}', state, wakeIn, runner }
  await world.db.sagas.insert(undefined, made)
}

describe('takeover', () => {
  test('a runner that is silent for 10 minutes is taken over, not before; what it was at is unknown', async () => {
    const work = deferred<string>()
    let calls = 0
    const one = saga('taken', { version: 1 })
      .step('a', () => 'a')
      .step('b', () => (++calls === 1 ? work.promise : 'again'), { timeout: '1h', check: () => void log.push('asked') })
    const { id } = await cutOff(one)
    world.clock.suspend(9 * 60_000)
    const second = world.runner([one])
    expect(await second.runOnce()).toMatchObject({ taken: 0 })
    world.clock.suspend(2 * 60_000)
    expect(await second.runOnce()).toMatchObject({ taken: 1 })
    expect(await world.load(id)).toMatchObject({ status: 'completed', takeovers: 0 })
    expect([log, calls]).toEqual([['asked'], 2])
    expect(world.telemetry.of('saga.taken_over')).toMatchObject([{ id, takeovers: 1, steps: ['a'] }])
  })

  test('a zombie wakes up: its write changes nothing, and it stops', async () => {
    const work = deferred<string>()
    let calls = 0
    const one = saga('zombie', { version: 1 })
      .step('a', () => (++calls > 1 ? 'second' : work.promise), { timeout: '1h' })
      .step('b', () => void log.push('b'))
    const { id, round } = await cutOff(one)
    world.clock.suspend(11 * 60_000)
    await world.runner([one]).runOnce()
    const before = await world.load(id)
    expect(before.status).toBe('completed')
    work.resolve('zombie')
    await world.soon(round)
    expect(await world.load(id)).toEqual(before)
    expect(log).toEqual(['b'])
    expect(world.telemetry.of('saga.fenced')).toMatchObject([{ id }])
  })

  test('a heartbeat that finds the saga in other hands aborts the signal of its step', async () => {
    const signals: AbortSignal[] = []
    const one = saga('lost', { version: 1 }).step(
      'a',
      (c) => {
        signals.push(c.signal)
        return signals.length > 1 ? 'second' : new Promise(() => {})
      },
      { timeout: '1h' },
    )
    await cutOff(one)
    world.clock.suspend(11 * 60_000)
    await world.runner([one]).runOnce()
    expect(signals.map(({ aborted }) => aborted)).toEqual([false, false])
    await world.clock.advance(1)
    expect(signals[0]!.aborted).toBe(true)
  })

  test('the heartbeat keeps what is in progress, however long it takes', async () => {
    const work = deferred<string>()
    const one = saga('long', { version: 1 }).step('a', () => work.promise, { timeout: '2h' })
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    const other = world.runner([one])
    for (let i = 0; i < 30; i++) {
      await world.clock.advance(60_000)
      expect(await other.runOnce()).toMatchObject({ taken: 0 })
    }
    work.resolve('done')
    await world.clock.advance(1000)
    expect((await world.load(id)).status).toBe('completed')
  })

  test('what was taken over runs alone; five takeovers in a row: held', async () => {
    const never = new Promise(() => {})
    const one = saga('poison', { version: 1 }).step(
      'a',
      () => {
        log.push('killed')
        return never
      },
      { timeout: '24h' },
    )
    const { id } = await cutOff(one)
    for (let i = 0; i < 4; i++) {
      world.clock.suspend(11 * 60_000)
      const runner = world.runner([one])
      runner.runOnce().catch(() => {})
      await world.clock.settle()
    }
    expect(log).toHaveLength(5)
    world.clock.suspend(11 * 60_000)
    await world.runner([one]).runOnce()
    expect(log).toHaveLength(5)
    expect(await world.load(id)).toMatchObject({
      held: expect.stringContaining('5 runners in a row'),
      runner: undefined,
    })
  })

  test('others are not claimed beside one that was taken over', async () => {
    const first = deferred()
    let calls = 0
    const one = saga<{ slow: boolean }>('apart', { version: 1 }).step(
      'a',
      (c) => {
        log.push(c.input.slow ? 'slow' : 'quick')
        return c.input.slow ? (++calls === 1 ? new Promise(() => {}) : first.promise) : 1
      },
      { timeout: '1h' },
    )
    const dead = world.runner([one])
    await start(dead, one, { slow: true })
    dead.runOnce().catch(() => {})
    await world.clock.settle()
    world.clock.suspend(11 * 60_000)
    for (let i = 0; i < 5; i++) await start(dead, one, { slow: false })
    await world.runner([one]).start()
    await world.clock.advance(10_000)
    expect(log).toEqual(['slow', 'slow'])
    first.resolve()
    await world.clock.advance(10_000)
    expect(log.filter((entry) => entry === 'quick')).toHaveLength(5)
  })
})

describe('a runner that is at work', () => {
  test('takes over what others left behind as soon as it is free, not at its next look', async () => {
    const one = saga<{ slow?: boolean }>('left', { version: 1 }).step(
      'a',
      (c) => {
        log.push(c.input.slow ? 'own' : 'left')
        return c.input.slow ? world.clock.sleep(20_000) : 1
      },
      { timeout: '1h' },
    )
    const runner = await world.runner([one]).start()
    // Nothing is there, and its pauses have grown: the next look is in nearly two minutes.
    await world.clock.advance(610_000)
    // Another process runs two of them and dies: nobody was told, since they were not due.
    for (let i = 0; i < 2; i++) await insert(one, 4000, uuidv7())
    const own = runner.client(one).run({ slow: true })
    await world.clock.advance(19_000)
    expect(log).toEqual(['own'])
    await world.clock.advance(2000)
    await own
    await world.clock.advance(1000)
    expect(log).toEqual(['own', 'left', 'left'])
  })
})

describe('a runner that is idle', () => {
  test('looks every two minutes at the latest, also when nobody tells it', async () => {
    const one = saga('rare', { version: 1 }).step('a', () => void log.push('a'))
    await world.runner([one]).start()
    await world.clock.advance(30 * 60_000)
    await insert(one, 121_000, undefined)
    await world.clock.advance(120_000)
    expect(log).toEqual([])
    await world.clock.advance(1100)
    expect(log).toEqual(['a'])
  })
})

describe('a runner that nobody notifies', () => {
  test('looks when what it gave back is due, not at its next look', async () => {
    const sagas = new Proxy(world.db.sagas, {
      get(store, name) {
        const value: unknown = name === 'listen' ? undefined : Reflect.get(store, name, store)
        return typeof value === 'function' ? value.bind(store) : value
      },
    })
    const store = { sagas, withTransaction: world.db.withTransaction.bind(world.db) } as never
    const times: number[] = []
    const fails = () => {
      times.push(world.clock.now())
      if (times.length === 1) throw new Error('reset')
    }
    const one = saga('again', { version: 1 }).step('a', fails, { backoff: { min: '100ms', jitter: 0 } })
    const runner = await world.runner([one], { store }).start()
    await world.clock.advance(60_000)
    const own = runner.client(one).run({})
    await world.clock.advance(3000)
    expect(times[1]! - times[0]!).toBe(100)
    await world.soon(own)
  })
})

describe('the fence', () => {
  test('a person raises the version in the middle of a step: its runner reloads, decides again and goes on', async () => {
    const work = deferred<string>()
    const one = saga('raised', { version: 1 })
      .step('a', () => work.promise, { timeout: '1h' })
      .step('b', () => 'b')
    const { id, round } = await cutOff(one)
    await world.admin(one).retry(id, audit)
    work.resolve('a')
    await world.soon(round)
    expect(await world.load(id)).toMatchObject({ status: 'completed' })
  })

  test('cancelled in the middle of a step: what it did is undone too', async () => {
    const work = deferred<string>()
    const undo = (c: { output: unknown }) => void log.push(`undo ${c.output}`)
    const one = saga('cancelled', { version: 1 })
      .step('a', () => 'a', { undo })
      .step('b', () => work.promise, { timeout: '1h', undo })
      .step('c', () => 'c', { undo })
    const { id, round, runner } = await cutOff(one)
    await world.db.withTransaction((tx) => runner.client(one as never).cancel(tx, id, 'changed my mind'))
    work.resolve('b')
    await world.soon(round)
    expect(await world.load(id)).toMatchObject({ status: 'compensated', error: 'changed my mind' })
    expect(log).toEqual(['undo b', 'undo a'])
  })
})

describe('a stop', () => {
  test('lets the step finish and gives the saga back at once; another goes on where it was', async () => {
    const work = deferred<string>()
    const one = saga('stopped', { version: 1 })
      .step('a', () => work.promise, { timeout: '1h' })
      .step('b', () => void log.push('b'))
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.settle()
    const stopping = runner.stop()
    work.resolve('a')
    await world.soon(stopping)
    expect(await world.load(id)).toMatchObject({ runner: undefined, currentStep: 'b', takeovers: 0 })
    expect(log).toEqual([])
    await world.runner([one]).runOnce()
    expect(await world.load(id)).toMatchObject({ status: 'completed' })
    expect(world.telemetry.of('saga.taken_over')).toEqual([])
  })

  test('a step that does not end in time is given back as unknown, with its policy', async () => {
    const one = saga('stuck', { version: 1 }).step('a', () => new Promise(() => {}), { timeout: '1h', unknown: 'hold' })
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.settle()
    await world.soon(runner.stop())
    const held = expect.stringContaining('a is unknown')
    expect(await world.load(id)).toMatchObject({ runner: undefined, held, steps: [{ status: 'unknown' }] })
  })
})

describe('versions', () => {
  test('an instance finishes on the version it began with, while that is registered', async () => {
    const first = saga('versioned', { version: 1 }).step('a', () => void log.push('one'))
    const second = saga('versioned', { version: 2 }).step('z', () => void log.push('two'))
    const old = world.runner([first])
    const id = await start(old, first)
    const both = world.runner([first, second])
    await start(both, second)
    await both.runOnce()
    expect(log.sort()).toEqual(['one', 'two'])
    expect((await world.load(id)).status).toBe('completed')
  })

  test('one that was changed under its version, or that nobody has, is not run, and told after a minute', async () => {
    const first = saga('versioned', { version: 1 }).step('a', () => void log.push('one'))
    const changed = saga('versioned', { version: 1 }).step('b', () => void log.push('changed'))
    const gone = saga('gone', { version: 3 }).step('a', () => void log.push('gone'))
    await start(world.runner([first]), first)
    await start(world.runner([gone]), gone)
    await world.runner([changed]).start()
    await world.clock.advance(4 * 60_000)
    expect(log).toEqual([])
    const told = world.telemetry.of('saga.overdue')
    expect(told.find(({ definition }) => definition === first.definition)).toMatchObject({ count: 1, changed: true })
    expect(told.find(({ definition }) => definition === gone.definition)).toMatchObject({ count: 1, changed: false })
  })

  test('two definitions of one version, or none at all, are refused', () => {
    const first = saga('twice', { version: 1 }).step('a', () => 1)
    const second = saga('twice', { version: 1 }).step('b', () => 1)
    expect(() => world.runner([first, second])).toThrow(/twice@1 is given twice/)
    expect(() => world.runner([])).toThrow(/give the sagas/)
    expect(() => world.runner([saga('empty', { version: 1 })])).toThrow(/no steps/)
  })
})

describe('operators', () => {
  const holding = (policy: 'hold' = 'hold') =>
    saga('ops', { version: 1 })
      .step('a', () => ({ secret: 1 }), { undo: () => void log.push('undo a') })
      .step('b', () => Promise.reject(new Error('hm')), { unknown: policy, undo: () => void log.push('undo b') })
      .step('c', () => 'c')

  async function held() {
    const one = holding()
    const runner = world.runner([one])
    const id = await start(runner, one, { card: 4711 })
    await runner.runOnce()
    return { one, runner, id, admin: world.admin(one) }
  }

  test('list those that wait for a person; show one with its history, without its data unless asked', async () => {
    const { id, admin } = await held()
    await admin.hold(id, audit)
    expect(await admin.list({ attention: true })).toMatchObject([{ id, held: 'b is unknown: Error: hm' }])
    const shown = await admin.show(id)
    expect(JSON.stringify(shown)).not.toMatch(/4711|secret/)
    expect(shown).toMatchObject({
      steps: [{ name: 'a' }, { name: 'b', attempts: 1 }],
      history: [{ action: 'hold', ...audit }],
    })
    expect(await admin.show(id, { data: true })).toMatchObject({
      input: { card: 4711 },
      steps: [{ output: { secret: 1 } }, {}],
    })
  })

  test('resolve as done with an output: it stays held, goes on when it is retried, and the output is there', async () => {
    const { id, admin, runner } = await held()
    await admin.resolve(id, 'b', done({ found: true }), audit)
    expect(await world.load(id)).toMatchObject({ held: expect.any(String), steps: [{}, { status: 'completed' }] })
    await admin.retry(id, audit)
    await runner.runOnce()
    expect(await world.load(id)).toMatchObject({ status: 'completed', steps: [{}, { output: { found: true } }, {}] })
    expect((await admin.show(id)).history.map(({ action }) => action)).toEqual(['resolve b as done', 'retry'])
  })

  test('resolve as not done: undone from there on, without its own undo', async () => {
    const { id, admin, runner } = await held()
    await admin.resolve(id, 'b', notDone, audit)
    await admin.retry(id, audit)
    await runner.runOnce()
    expect(await world.load(id)).toMatchObject({ status: 'compensated' })
    expect(log).toEqual(['undo a'])
  })

  test('compensate, hold, end; what the table refuses is refused and not written down', async () => {
    const { id, admin, runner } = await held()
    await admin.compensate(id, audit)
    await runner.runOnce()
    expect(log).toEqual(['undo b', 'undo a'])
    await expect(admin.retry(id, audit)).rejects.toMatchObject({ code: 'SAGA_REFUSED' })
    await expect(admin.end(id, audit)).rejects.toMatchObject({ code: 'SAGA_REFUSED' })
    expect((await admin.show(id)).history).toHaveLength(1)
    const other = await held()
    await admin.end(other.id, audit)
    expect(await world.load(other.id)).toMatchObject({ status: 'failed', error: 'because', held: undefined })
    expect(await admin.list({ attention: true })).toEqual([])
  })

  test('a failed saga is retried from its undo', async () => {
    let broken = true
    const one = saga('fails', { version: 1 })
      .step('a', () => 1, {
        undo: () => {
          if (broken) throw new Reject('not today')
          log.push('undo a')
        },
      })
      .step('b', () => Promise.reject(new Reject('no')))
    const runner = world.runner([one])
    const id = await start(runner, one)
    await runner.runOnce()
    expect((await world.load(id)).status).toBe('failed')
    broken = false
    await world.admin(one).retry(id, audit)
    await runner.runOnce()
    expect(await world.load(id)).toMatchObject({ status: 'compensated' })
  })

  test('who and why must be said, and the saga must be there', async () => {
    const { id, admin } = await held()
    await expect(admin.retry(id, { by: '', note: 'x' })).rejects.toMatchObject({ code: 'INVALID_OPTION' })
    await expect(admin.retry('00000000-0000-7000-8000-00000000dead', audit)).rejects.toMatchObject({
      code: 'SAGA_UNKNOWN',
    })
  })
})
