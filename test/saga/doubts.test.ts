import { afterEach, describe, expect, test } from 'vitest'
import { uuidv7 } from '../../src/core/index.ts'
import { Unavailable } from '../../src/index.ts'
import { type AnySaga, decide, evolve, type SagaClient, type SagaState, saga } from '../../src/saga/index.ts'
import { deferred, inMemory } from './support.ts'

/** What is not certain: writes whose answers are lost or that fail, claims that are given back before anything was written. */
let world = inMemory()
const log: string[] = []
afterEach(async () => {
  await world.end()
  world = inMemory()
  log.splice(0)
})

type Client = SagaClient<unknown, unknown, Record<string, unknown>>
const client = (runner: { client(one: never): unknown }, one: AnySaga) => runner.client(one as never) as Client
const start = (runner: { client(one: never): unknown }, one: AnySaga, input: unknown = {}) =>
  world.db.withTransaction((tx) => client(runner, one).start(tx, input))
const undo = () => void log.push('undo')
const deadlock = () => Object.assign(new Error('deadlock detected'), { code: '40P01', severity: 'ERROR' })

/** The world's store with one method changed. */
function storeWith(changed: Partial<typeof world.db.sagas>) {
  const { sagas } = world.db
  const bound = Object.fromEntries(
    [
      'insert',
      'save',
      'load',
      'ended',
      'claim',
      'extend',
      'nextDue',
      'list',
      'overdue',
      'listen',
      'audit',
      'audits',
    ].map((name) => [name, (sagas[name as 'save'] as (...args: unknown[]) => unknown).bind(sagas)]),
  )
  return {
    sagas: { name: sagas.name, ...bound, ...changed },
    withTransaction: world.db.withTransaction.bind(world.db),
  } as never
}

/** `save` fails in the n-th call, having written or not. */
function failing(nth: number, written: boolean, error: () => Error) {
  const { sagas } = world.db
  let calls = 0
  const save = async (...args: Parameters<typeof sagas.save>) => {
    if (++calls !== nth) return sagas.save(...args)
    if (written) await sagas.save(...args)
    throw error()
  }
  return storeWith({ save })
}

describe('a write that fails', () => {
  test.each([
    ['check', { check: () => void log.push('check') }],
    ['hold', { unknown: 'hold' as const }],
    ['undo', { unknown: 'undo' as const }],
  ])('a transient error of the store loses no result: the step is not run again (%s)', async (_, more) => {
    const one = saga('written', { version: 1 })
      .step('a', () => void log.push('a'), { undo, ...more })
      .step('b', () => void log.push('b'))
    const runner = await world.runner([one], { store: failing(1, false, deadlock) }).start()
    const id = await start(runner, one)
    await world.soon(client(runner, one).result(id))
    expect(log).toEqual(['a', 'b'])
  })

  test('one that may have been written is not taken for a saga that is stuck', async () => {
    const one = saga('cancelled', { version: 1 })
      .step('a', () => 1, { undo })
      .sleep('pause', '1h')
    // The second write of the runner is the intent of the undo.
    const store = failing(2, true, () => new Unavailable('the answer was lost'))
    const runner = await world.runner([one], { store }).start()
    const id = await start(runner, one)
    await world.clock.advance(1000)
    await world.admin(one).compensate(id, { by: 'ann', note: 'not wanted' })
    await world.clock.advance(60_000)
    expect(await world.load(id)).toMatchObject({ status: 'compensated', held: undefined })
    expect(log).toEqual(['undo'])
  })

  test('the answer to the first write of run() is lost: it is driven all the same, and its caller is told', async () => {
    const { sagas } = world.db
    let lose = true
    const insert = async (...args: Parameters<typeof sagas.insert>) => {
      const inserted = await sagas.insert(...args)
      if (!lose) return inserted
      lose = false
      throw new Unavailable('the answer was lost')
    }
    const one = saga('begun', { version: 1 }).step('a', () => 'a')
    const runner = await world.runner([one], { store: storeWith({ insert }) }).start()
    await world.clock.settle()
    expect(await world.soon(client(runner, one).run({}), 30_000)).toEqual({ a: 'a' })
  })

  test('a store that is away for a moment does not end the wait of a caller', async () => {
    const { sagas } = world.db
    let away = 3
    const ended = async (...args: Parameters<typeof sagas.ended>) => {
      if (away-- > 0) throw new Unavailable('away')
      return sagas.ended(...args)
    }
    const one = saga('waited', { version: 1 }).sleep('pause', '5s')
    await world.runner([one]).start()
    const id = await start(world.runner([one]), one)
    const waits = client(world.runner([one], { store: storeWith({ ended }) }), one).result(id)
    expect(await world.soon(waits)).toEqual({})
    expect(away).toBeLessThan(0)
  })

  test('the text of an error that a store cannot hold is no reason to hold the saga', async () => {
    let tries = 0
    const one = saga('nul', { version: 1 }).step('a', () => {
      if (++tries === 1) throw new Error('a\0b \ud800')
      return tries
    })
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.advance(500)
    expect((await world.load(id)).steps[0]!.error).toMatch(/^Error: a/)
    expect(JSON.stringify((await world.load(id)).steps[0]!.error)).not.toMatch(/\\u0000|\\ud800/)
  })
})

describe('a saga that is given back before anything was written', () => {
  test('one that was taken over stays unknown', async () => {
    const never = new Promise(() => {})
    const one = saga('taken', { version: 1 }).step('a', () => never, { timeout: '1h', undo })
    const dead = world.runner([one])
    const id = await start(dead, one)
    dead.runOnce().catch(() => {})
    await world.clock.settle()
    world.clock.suspend(11 * 60_000)
    // Claimed, and the runner stops before it has begun with it.
    const { sagas } = world.db
    const claim = async (...args: Parameters<typeof sagas.claim>) => {
      const claimed = await sagas.claim(...args)
      if (claimed.length > 0) stopping.resolve()
      return claimed
    }
    const stopping = deferred()
    const second = world.runner([one], { store: storeWith({ claim }) })
    stopping.promise.then(() => second.stop())
    await second.start()
    await world.clock.advance(20_000)
    const saved = await world.load(id)
    expect(saved).toMatchObject({ runner: undefined, steps: [{ status: 'unknown' }] })
    await world.db.withTransaction((tx) => client(world.runner([one]), one).cancel(tx, id))
    await world.runner([one]).runOnce()
    expect(log).toEqual(['undo'])
  })

  test('a person writes while it is given back: what its step may have done stays unknown', async () => {
    const one = saga('raced', { version: 1 }).step('a', () => new Promise(() => {}), { timeout: '1h', undo })
    const { sagas } = world.db
    const admin = world.admin(one)
    let raced = false
    let id = ''
    const save = async (...args: Parameters<typeof sagas.save>) => {
      if (!raced && args[1].claim === 'release') {
        raced = true
        await admin.compensate(id, { by: 'ann', note: 'at the same time' })
      }
      return sagas.save(...args)
    }
    const runner = await world.runner([one], { store: storeWith({ save }) }).start()
    id = await start(runner, one)
    await world.clock.settle()
    await world.soon(runner.stop())
    expect(raced).toBe(true)
    await world.runner([one]).runOnce()
    expect(await world.load(id)).toMatchObject({ status: 'compensated' })
    expect(log).toEqual(['undo'])
  })

  /** Its runner has stopped without a word in the middle of the first step, `takeovers` times. */
  async function leftBehind(one: AnySaga, takeovers = 1): Promise<string> {
    const runner = world.runner([one])
    const id = await start(runner, one)
    for (let i = 0; i < takeovers; i++) {
      const [claimed] = await world.db.sagas.claim({
        ...{ definitions: [one.definition], count: 1, takeovers: 1, runner: uuidv7(), lease: 1000 },
      })
      expect(claimed!.saga.id).toBe(id)
      await world.clock.advance(1001)
    }
    return id
  }

  test('one that is held after five takeovers is undone when a person says so: its step may have run', async () => {
    const one = saga('poison', { version: 1 }).step('a', () => void log.push('a'), { undo })
    const id = await leftBehind(one, 5)
    await world.runner([one]).runOnce()
    expect(await world.load(id)).toMatchObject({ held: expect.stringContaining('5 runners') })
    await world.admin(one).compensate(id, { by: 'ann', note: 'it kills' })
    await world.runner([one]).runOnce()
    expect(log).toEqual(['undo'])
  })

  test('one that was taken over and cannot be given back at once is still unknown later', async () => {
    const { sagas } = world.db
    const one = saga<{ bad?: boolean }>('away', { version: 1 }).step(
      'a',
      (c) => {
        if (c.input.bad) throw new Unavailable('away')
      },
      { undo },
    )
    let failed = false
    const save = async (...args: Parameters<typeof sagas.save>) => {
      const [tx, change] = args
      if (failed || change.id !== id) return sagas.save(tx, change)
      failed = true
      await world.admin(one).compensate(id, { by: 'ann', note: 'at the same time' })
      throw new Unavailable('the database is away')
    }
    const runner = await world.runner([one], { store: storeWith({ save }) }).start()
    // So that the step is waited for, and what is taken over is given back.
    await start(runner, one, { bad: true })
    await world.clock.advance(1)
    const id = await leftBehind(one)
    await world.clock.advance(120_000)
    expect(failed).toBe(true)
    expect(await world.load(id)).toMatchObject({ status: 'compensated' })
    expect(log).toEqual(['undo'])
  })

  test('a stop while a transaction step commits: it is given back, not left to be taken over', async () => {
    const committing = deferred()
    const goOn = deferred()
    const store = {
      sagas: world.db.sagas,
      async withTransaction(fn: (tx: never) => Promise<unknown>) {
        const value = await world.db.withTransaction(async (tx) => fn(tx as never))
        committing.resolve()
        await goOn.promise
        return value
      },
    } as never
    const one = saga('commits', { version: 1 })
      .transaction('a', () => 1)
      .step('b', () => 2)
    const runner = await world.runner([one], { store }).start()
    const id = await start(runner, one)
    await world.clock.settle()
    await committing.promise
    const stopping = runner.stop()
    goOn.resolve()
    await world.soon(stopping)
    expect(await world.load(id)).toMatchObject({ runner: undefined, currentStep: 'b', takeovers: 0 })
  })
})

describe('sleeps', () => {
  test.each(['start', 'run'] as const)('one that comes first lasts as long as any other (%s)', async (way) => {
    const one = saga('sleepy', { version: 1 })
      .sleep('pause', '10m')
      .step('a', () => void log.push('a'))
    const runner = await world.runner([one]).start()
    await world.clock.settle()
    if (way === 'start') await start(runner, one)
    else
      client(runner, one)
        .run({})
        .catch(() => {})
    await world.clock.advance(9 * 60_000)
    expect(log).toEqual([])
    await world.clock.advance(61_000)
    expect(log).toEqual(['a'])
  })

  test('a person who holds and retries does not cut it short', async () => {
    const one = saga('sleepy', { version: 1 })
      .sleep('pause', '10m')
      .step('a', () => void log.push('a'))
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.advance(60_000)
    await world.admin(one).hold(id, { by: 'ann', note: 'a look' })
    await world.clock.advance(60_000)
    await world.admin(one).retry(id, { by: 'ann', note: 'all is well' })
    await world.clock.advance(7 * 60_000)
    expect(log).toEqual([])
    await world.clock.advance(61_000)
    expect(log).toEqual(['a'])
  })
})

describe('onEnd', () => {
  test('one that never returns is given up after 5 s, and tried again', async () => {
    let calls = 0
    const one = saga('hangs', { version: 1 })
      .step('a', () => 1)
      .onEnd(() => (++calls === 1 ? new Promise(() => {}) : undefined))
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.advance(10_000)
    expect([calls, (await world.load(id)).status]).toEqual([2, 'completed'])
  })

  test('one that fails for good in the transaction of the last step holds the saga, and undoes nothing', async () => {
    let broken = true
    const one = saga('ends', { version: 1 })
      .step('a', () => 1, { undo })
      .transaction('b', () => void log.push('b'))
      .onEnd(() => {
        if (broken) throw Object.assign(new Error('duplicate'), { code: '23505', severity: 'ERROR' })
      })
    const runner = await world.runner([one]).start()
    const id = await start(runner, one)
    await world.clock.advance(1000)
    expect(await world.load(id)).toMatchObject({ status: 'running', held: expect.stringContaining('onEnd failed') })
    broken = false
    await world.admin(one).retry(id, { by: 'ann', note: 'mended' })
    await world.clock.advance(1000)
    expect(await world.load(id)).toMatchObject({ status: 'completed' })
    expect(log).toEqual(['b', 'b'])
  })
})

describe('a runner that is never idle', () => {
  test('takes over what another left behind', async () => {
    const one = saga<{ n: number }>('busy', { version: 1 }).step(
      'a',
      async (c) => {
        if (c.input.n === 0) return log.push('left behind')
        await world.clock.sleep(1500)
        return c.input.n
      },
      { timeout: '1h' },
    )
    const id = uuidv7()
    const begun = { id, type: one.name, status: 'running' as const, held: undefined, error: undefined, steps: [] }
    const state = decide(one.steps, begun, { type: 'begin' }).reduce(evolve, begun as SagaState)
    const none = { aggregate: undefined, tenant: undefined, traceparent: undefined }
    const about = { id, type: one.name, definition: one.definition, input: '{"n":0}', state, ...none }
    const runner = await world.runner([one]).start()
    // Its runner has died by then, and this one is in the middle of others.
    await world.db.sagas.insert(undefined, { ...about, runner: uuidv7(), wakeIn: 10_000 })
    let n = 0
    for (let second = 0; second < 60; second++) {
      await start(runner, one, { n: ++n })
      await world.clock.advance(1000)
    }
    expect(await world.load(id)).toMatchObject({ status: 'completed' })
    expect(log).toEqual(['left behind'])
    expect((await client(runner, one).find({ status: 'completed' }, { limit: 100 })).length).toBeGreaterThan(50)
  })
})

describe('clients', () => {
  test('cancel goes by the version the saga began with', async () => {
    const first = saga('versions', { version: 1 })
      .step('a', () => 1, { undo })
      .pointOfNoReturn()
      .sleep('old', '1h')
    const second = saga('versions', { version: 2 })
      .step('a', () => 1, { undo })
      .sleep('new', '1h')
    const runner = await world.runner([first, second]).start()
    const id = await start(runner, first)
    await world.clock.advance(1000)
    const cancel = (by: { client(one: never): unknown }) =>
      world.db.withTransaction((tx) => client(by, second).cancel(tx, id))
    await expect(cancel(runner)).rejects.toMatchObject({ code: 'SAGA_REFUSED', message: /point of no return/ })
    // One that does not know that version cannot say.
    await expect(cancel(world.runner([second]))).rejects.toMatchObject({ code: 'SAGA_REFUSED', message: /versions@1/ })
  })

  test('the id of another saga is unknown', async () => {
    const one = saga('one', { version: 1 }).step('a', () => 1)
    const other = saga('other', { version: 1 }).step('a', () => 1)
    const runner = await world.runner([one, other]).start()
    const id = await start(runner, one)
    await world.soon(client(runner, one).result(id))
    await expect(world.soon(client(runner, other).result(id))).rejects.toMatchObject({ code: 'SAGA_UNKNOWN' })
    const cancelled = world.db.withTransaction((tx) => client(runner, other).cancel(tx, id))
    await expect(cancelled).rejects.toMatchObject({ code: 'SAGA_UNKNOWN' })
    await expect(world.soon(client(runner, one).result('order 7'))).rejects.toThrow('there is no saga "order 7", or')
  })
})
