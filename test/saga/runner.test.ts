import { afterEach, describe, expect, test } from 'vitest'
import { Reject, RetryLater, Unavailable } from '../../src/index.ts'
import { type AnySaga, SagaAdmin, type SagaClient, SagaRunner, saga } from '../../src/saga/index.ts'
import { deferred, inMemory } from './support.ts'

type Client = SagaClient<unknown, unknown, Record<string, unknown>, unknown>
const client = (runner: { client(one: never): unknown }, one: AnySaga) => runner.client(one as never) as Client

let world = inMemory()
afterEach(async () => {
  await world.end()
  world = inMemory()
})

async function started(...sagas: AnySaga[]) {
  const runner = await world.runner(sagas).start()
  await world.clock.settle()
  return runner
}

const at = new Date('2030-01-01T00:00:00Z')
const log: string[] = []
afterEach(() => log.splice(0))
const does =
  (name: string, value: unknown = name) =>
  () => {
    log.push(name)
    return value
  }
const order = (changes: Record<string, () => unknown> = {}) =>
  saga('order', { version: 1 })
    .step('reserve', changes['reserve'] ?? does('reserve', { at }), { undo: does('undo reserve') })
    .step('charge', changes['charge'] ?? does('charge', 7), { undo: does('undo charge') })
    .step('ship', changes['ship'] ?? does('ship', 'shipped'), { undo: does('undo ship') })

describe('run', () => {
  test('drives a saga through its steps and returns what they returned, as it comes back from JSON', async () => {
    const one = order()
    const runner = await started(one)
    const results = await world.soon(client(runner, one).run({ n: 1 }))
    expect(results).toEqual({ reserve: { at: at.toISOString() }, charge: 7, ship: 'shipped' })
    expect(log).toEqual(['reserve', 'charge', 'ship'])
  })

  test('a result is the same for the next step as it is after a crash', async () => {
    let seen: unknown
    const one = saga('dates', { version: 1 })
      .step('first', () => ({ at }))
      .step('second', (c) => {
        seen = c.results.first.at
      })
    const runner = await started(one)
    await world.soon(client(runner, one).run({ at }))
    expect(seen).toBe(at.toISOString())
  })

  test('`attempt` is 1 for the first try, of a step and of its undo', async () => {
    const seen: unknown[] = []
    const fails = (what: string, times: number) => (c: { attempt: number }) => {
      seen.push([what, c.attempt])
      if (c.attempt <= times) throw new Error('away')
    }
    const one = saga('attempts', { version: 1 })
      .step('reserve', fails('reserve', 2), { undo: fails('undo', 1) })
      .step('charge', () => {
        throw new Reject('no money')
      })
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toThrow('no money')
    expect(seen).toEqual([
      ['reserve', 1],
      ['reserve', 2],
      ['reserve', 3],
      ['undo', 1],
      ['undo', 2],
    ])
  })

  test('throws what a step was refused with, after the others were undone in reverse order', async () => {
    const refusal = new Reject('no carrier')
    const one = order({
      ship: () => {
        throw refusal
      },
    })
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toBe(refusal)
    expect(log).toEqual(['reserve', 'charge', 'undo charge', 'undo reserve'])
    const [found] = await client(runner, one).find({ status: 'compensated' })
    expect(found).toMatchObject({ error: 'ship: Reject [REJECTED]: no carrier' })
    // Another process is told the same.
    await expect(world.soon(client(runner, one).result(found!.id))).rejects.toMatchObject({
      code: 'REJECTED',
      message: 'no carrier',
    })
  })

  test('throws with the id when the time is up, and the saga goes on without the caller', async () => {
    const work = deferred<number>()
    const one = saga('slow', { version: 1 }).step('only', () => work.promise, { timeout: '1h' })
    const runner = await started(one)
    const error = await world.soon(client(runner, one).run({}, { timeout: '30s' })).catch((thrown) => thrown)
    expect(error).toMatchObject({ code: 'SAGA_TIMEOUT', status: 'running' })
    expect(error.message).toMatch(/has not ended in time; it goes on: its step only is going on in this process \[/)
    work.resolve(5)
    expect(await world.soon(client(runner, one).result(error.sagaId))).toEqual({ only: 5 })
  })

  test('says which step has failed when the time is up, and that no runner has it', async () => {
    const one = saga('broken', { version: 1 }).step('only', () => {
      throw new TypeError('x is not a function')
    })
    const none = world.runner([one])
    const waiting = world.soon(client(none, one).run({}, { id: 'mine', timeout: '5s' }))
    await expect(waiting).rejects.toThrow('it goes on when a runner takes it: is a SagaRunner started')
    const runner = await started(one)
    const failing = world.soon(client(runner, one).result('mine', { timeout: '30s' }))
    await expect(failing).rejects.toThrow('it goes on: its step only is unknown (TypeError: x is not a function)')
  })

  test('says that another runner has it when the time is up, and when that one would be taken for dead', async () => {
    const work = deferred<number>()
    const one = saga('elsewhere', { version: 1 }).step('only', () => work.promise, { timeout: '1h' })
    const runner = await started(one)
    const id = await world.db.withTransaction((tx) => client(runner, one).start(tx, {}))
    await world.clock.until(() => runner.status().unsettled === 1)
    const waiting = world.soon(client(world.runner([one]), one).result(id, { timeout: '30s' }))
    await expect(waiting).rejects.toThrow(
      /it goes on: a runner has it at step only; if that runner was killed, another takes it over at \d{4}-.*Z \(lease\)/,
    )
    work.resolve(5)
  })

  test('says when the time is up that the steps were changed under one version', async () => {
    const before = saga('changed', { version: 1 }).step('reserve', () => 1)
    const after = saga('changed', { version: 1 }).step('book', () => 1)
    const id = await world.db.withTransaction((tx) => client(world.runner([before]), before).start(tx, {}))
    const runner = await started(after)
    const waiting = world.soon(client(runner, after).result(id, { timeout: '5s' }))
    await expect(waiting).rejects.toThrow(
      /it began as changed@1#\w+, and here that is changed@1#\w+: the steps were changed under one version\. Give/,
    )
  })

  test('says so of one that was failing under its old steps, too', async () => {
    const failing = () => Promise.reject(new Error('answered 404'))
    const before = saga('mended', { version: 1 }).step('reserve', failing)
    const first = await started(before)
    const id = await world.db.withTransaction((tx) => client(first, before).start(tx, {}))
    await expect(world.soon(client(first, before).result(id, { timeout: '5s' }))).rejects.toThrow(
      /it goes on: its step reserve is unknown \(Error: answered 404\) \[/,
    )
    await first.stop()
    const after = saga('mended', { version: 1 }).step('book', () => 1)
    const waiting = world.soon(client(await started(after), after).result(id, { timeout: '5s' }))
    await expect(waiting).rejects.toThrow(
      /began as mended@1#\w+, .* under one version\. Give .* both\. Meanwhile its step reserve is unknown \(Error: answered 404\) \[/,
    )
  })

  test('a runner that is stopped in a step says so', async () => {
    const one = saga('stopped', { version: 1 }).step('only', () => new Promise(() => {}), { timeout: '1h' })
    const runner = await started(one)
    const id = await world.db.withTransaction((tx) => client(runner, one).start(tx, {}))
    await world.clock.until(() => runner.status().unsettled === 1)
    await world.soon(runner.stop())
    const [step] = (await world.load(id)).steps
    expect(step).toMatchObject({ status: 'unknown', error: 'its runner was stopped before it returned' })
  })

  test.each([
    ['saga runner', (store: never) => new SagaRunner({ store, sagas: [saga('x', { version: 1 }).step('a', () => 1)] })],
    ['saga admin', (store: never) => new SagaAdmin({ store, sagas: [] })],
  ])('a pool in place of the database is refused: %s', (who, make) => {
    expect(() => make({ query() {} } as never)).toThrow(
      `${who}: store is an object; give postgres({ pool, sagas: true })`,
    )
  })

  test('the signal of the caller stops the waiting, and undoes nothing', async () => {
    const work = deferred()
    const one = saga('slow', { version: 1 }).step('only', () => work.promise, { timeout: '1h', undo: does('undo') })
    const runner = await started(one)
    const caller = new AbortController()
    const running = client(runner, one).run({}, { id: 'mine', signal: caller.signal })
    running.catch(() => {})
    await world.clock.settle()
    caller.abort(new Error('gone home'))
    await expect(world.soon(running)).rejects.toThrow('gone home')
    work.resolve()
    await world.soon(client(runner, one).result('mine'))
    expect(log).toEqual([])
  })

  test('without a runner at work in this process, it is started and waited for', async () => {
    const one = order()
    const idle = world.runner([one])
    const running = client(idle, one).run({})
    running.catch(() => {})
    await world.clock.settle()
    await started(one)
    expect(await world.soon(running)).toMatchObject({ ship: 'shipped' })
  })

  test('held: an error with the id and the reason', async () => {
    const one = saga('held', { version: 1 }).step('only', () => Promise.reject(new Error('hm')), { unknown: 'hold' })
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toMatchObject({
      code: 'SAGA_HELD',
      message: expect.stringContaining('only is unknown: Error: hm'),
      sagaId: expect.any(String),
    })
  })
})

describe('start', () => {
  test('begins with the commit of the caller, and never with a rollback', async () => {
    const one = order()
    const runner = await started(one)
    const orders = client(runner, one)
    let rolledBack = ''
    const failing = world.db.withTransaction(async (tx) => {
      rolledBack = await orders.start(tx, { n: 1 })
      throw new Error('rolled back')
    })
    await expect(failing).rejects.toThrow('rolled back')
    const id = await world.db.withTransaction(async (tx) => {
      const made = await orders.start(tx, { n: 1 })
      await world.clock.advance(10_000)
      expect(log).toEqual([])
      return made
    })
    expect(await world.soon(orders.result(id))).toMatchObject({ charge: 7 })
    await expect(world.soon(orders.result(rolledBack))).rejects.toMatchObject({ code: 'SAGA_UNKNOWN' })
  })

  test('the same id is the same saga; with another input it is an error', async () => {
    const one = order()
    const runner = await started(one)
    const orders = client(runner, one)
    const start = (input: unknown) => world.db.withTransaction((tx) => orders.start(tx, input, { id: 'order-1' }))
    const id = await start({ n: 1, at })
    expect(await start({ at: at.toISOString(), n: 1 })).toBe(id)
    await expect(start({ n: 2 })).rejects.toMatchObject({ code: 'SAGA_EXISTS' })
    await world.soon(orders.result('order-1'))
    expect(await world.soon(orders.run({ n: 1, at }, { id: 'order-1' }))).toMatchObject({ charge: 7 })
    expect(log).toEqual(['reserve', 'charge', 'ship'])
  })

  test.each([
    ['an input that the schema refuses', { n: 'x' }, 'INVALID_PAYLOAD'],
    ['a BigInt', { n: 1, big: 1n }, 'NOT_SERIALISABLE'],
    ['5 MB', { n: 1, big: 'x'.repeat(5_000_000) }, 'TOO_LARGE'],
  ])('%s is refused before anything is written', async (_, input, code) => {
    const schema = {
      '~standard': {
        version: 1 as const,
        vendor: 'test',
        validate: (value: unknown) =>
          typeof (value as { n: unknown }).n === 'number' ? { value } : { issues: [{ message: 'n is no number' }] },
      },
    }
    const one = saga('checked', { version: 1, input: schema }).step('only', does('only'))
    const runner = await started(one)
    await expect(runner.client(one).run(input)).rejects.toMatchObject({ code })
    expect(await runner.client(one).find()).toEqual([])
  })

  test('it is written, as running, with its type and its aggregate, before its first step runs', async () => {
    let find = async (): Promise<unknown> => undefined
    const one = saga<{ id: string }>('begun', { version: 1, aggregate: ({ id }) => id }).step('only', async () => {
      log.push(JSON.stringify(await find()))
    })
    const runner = await started(one)
    find = () => runner.client(one).find({ aggregate: 'a' })
    await world.soon(runner.client(one).run({ id: 'a' }, { id: 'first' }))
    const [seen] = log.map((text) => JSON.parse(text))
    expect(seen).toMatchObject([
      { type: 'begun', aggregate: 'a', status: 'running', steps: [{ name: 'only', status: 'pending' }] },
    ])
  })

  test('it is compensating, where others can see it, before anything is undone', async () => {
    let find = async (): Promise<unknown> => undefined
    const one = saga('turned', { version: 1 })
      .step('first', does('first'), { undo: async () => void log.push(JSON.stringify(await find())) })
      .step('second', () => Promise.reject(new Reject('no')))
    const runner = await started(one)
    find = () => runner.client(one).find()
    await expect(world.soon(runner.client(one).run({}))).rejects.toThrow('no')
    expect(log).toHaveLength(2)
    expect(JSON.parse(log[1]!)).toMatchObject([
      { status: 'compensating', steps: [{ status: 'compensating' }, { status: 'failed' }] },
    ])
  })

  test('find by aggregate and status', async () => {
    const one = saga<{ id: string }>('found', { version: 1, aggregate: ({ id }) => id }).step('only', does('only'))
    const runner = await started(one)
    for (const id of ['a', 'b']) await world.soon(runner.client(one).run({ id }))
    expect(await runner.client(one).find({ aggregate: 'a', status: 'completed' })).toHaveLength(1)
    expect(await runner.client(one).find({ aggregate: 'a', status: 'running' })).toHaveLength(0)
  })
})

describe('unknown', () => {
  const failing = (times: number, error: unknown = new Error('reset')) => {
    let calls = 0
    return () => {
      log.push('try')
      if (++calls <= times) throw error
      return calls
    }
  }

  test('an error is tried again with the same key, later and later', async () => {
    const keys: string[] = []
    const times: number[] = []
    let calls = 0
    const one = saga('again', { version: 1 }).step('only', (c) => {
      keys.push(c.key)
      times.push(world.clock.now())
      if (++calls < 9) throw new Error('reset')
      return calls
    })
    const runner = await started(one)
    const start = world.clock.now()
    expect(await world.soon(client(runner, one).run({}, { timeout: '1h' }))).toEqual({ only: 9 })
    expect(new Set(keys).size).toBe(1)
    const pauses = times.map((time, i) => Math.round((time - (times[i - 1] ?? start)) / 1000))
    expect(pauses).toEqual([0, 1, 2, 4, 8, 16, 32, 60, 60])
  })

  test('a check that finds it: it is done, and not run again', async () => {
    let asked = 0
    const check = () => {
      if (++asked === 1) throw new Error('the lookup failed')
      return 'found'
    }
    const one = saga('checked', { version: 1 }).step('only', failing(9), { check })
    const runner = await started(one)
    expect(await world.soon(client(runner, one).run({}))).toEqual({ only: 'found' })
    expect([log, asked]).toEqual([['try'], 2])
  })

  test('a check that takes longer than 5 s, or is refused itself, is asked again: the step is not run, and not refused', async () => {
    const signals: AbortSignal[] = []
    const check = (c: { signal: AbortSignal }) => {
      signals.push(c.signal)
      if (signals.length === 2) throw new Reject('no such order')
      if (signals.length > 2) return 'found'
      return new Promise((_, reject) => c.signal.addEventListener('abort', () => reject(c.signal.reason)))
    }
    const one = saga('checked', { version: 1 }).step('only', failing(9), { check, undo: does('undo') })
    const runner = await started(one)
    const began = world.clock.now()
    expect(await world.soon(client(runner, one).run({}))).toEqual({ only: 'found' })
    expect([log, signals.length]).toEqual([['try'], 3])
    expect(signals[0]!.reason).toMatchObject({ code: 'TIMEOUT' })
    // Three pauses, and the five seconds.
    expect(Math.floor((world.clock.now() - began) / 1000)).toBe(5 + 1 + 2 + 4)
  })

  test('a check that does not find it: it runs again', async () => {
    const one = saga('checked', { version: 1 }).step('only', failing(1), { check: () => void log.push('check') })
    const runner = await started(one)
    expect(await world.soon(client(runner, one).run({}))).toEqual({ only: 2 })
    expect(log).toEqual(['try', 'check', 'try'])
  })

  test('a permanent error is not retried, and its own undo runs without an output', async () => {
    let output: unknown = 'unset'
    const undo = (c: { output: unknown }) => {
      output = c.output
      log.push('undo')
    }
    const violation = Object.assign(new Error('duplicate'), { code: '23505', severity: 'ERROR' })
    const one = saga('permanent', { version: 1 }).step('only', failing(9, violation), { undo })
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toMatchObject({ code: 'SAGA_COMPENSATED' })
    expect([log, output]).toEqual([['try', 'undo'], undefined])
  })

  test.each([
    ['a BigInt', 1n],
    [
      'a cycle',
      (() => {
        const circle: unknown[] = []
        circle.push(circle)
        return circle
      })(),
    ],
    ['5 MB', 'x'.repeat(5_000_000)],
    ['a NUL', 'a\0b'],
  ])('a result that cannot be stored (%s): undone', async (_, value) => {
    const one = saga('unstorable', { version: 1 }).step('only', does('run', value), { undo: does('undo') })
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toMatchObject({ code: 'SAGA_COMPENSATED' })
    expect(log).toEqual(['run', 'undo'])
  })

  test('a call that takes longer than 5 s is given up, and its signal says so', async () => {
    const signals: AbortSignal[] = []
    const one = saga('slow', { version: 1 }).step('only', (c) => {
      signals.push(c.signal)
      if (signals.length > 1) return 'in time'
      return new Promise((_, reject) => c.signal.addEventListener('abort', () => reject(c.signal.reason)))
    })
    const runner = await started(one)
    const began = world.clock.now()
    expect(await world.soon(client(runner, one).run({}))).toEqual({ only: 'in time' })
    expect(signals[0]!.reason).toMatchObject({ code: 'TIMEOUT' })
    expect(Math.floor((world.clock.now() - began) / 1000)).toBe(6)
  })

  test('one that was given up and still runs is waited for: it is never run twice at once', async () => {
    const work = deferred<string>()
    let atOnce = 0
    let calls = 0
    const one = saga('late', { version: 1 }).step('only', async () => {
      calls++
      atOnce++
      expect(atOnce).toBe(1)
      return work.promise.finally(() => atOnce--)
    })
    const runner = await started(one)
    const running = client(runner, one).run({}, { timeout: '1h' })
    running.catch(() => {})
    await world.clock.advance(120_000)
    expect(calls).toBe(1)
    work.resolve('late')
    expect(await world.soon(running)).toEqual({ only: 'late' })
  })

  test('an undo waits for a run that was given up and still goes on', async () => {
    const work = deferred()
    const one = saga('late', { version: 1 }).step('only', () => work.promise.then(does('ran')), {
      unknown: 'undo',
      undo: does('undo'),
    })
    const runner = await started(one)
    const running = client(runner, one).run({}, { timeout: '1h' })
    running.catch(() => {})
    await world.clock.advance(30_000)
    expect(log).toEqual([])
    work.resolve()
    await expect(world.soon(running)).rejects.toMatchObject({ code: 'SAGA_COMPENSATED' })
    expect(log).toEqual(['ran', 'undo'])
  })

  test('RetryLater says when', async () => {
    const one = saga('later', { version: 1 }).step('only', failing(1, new RetryLater('10m')))
    const runner = await started(one)
    const began = world.clock.now()
    await world.soon(client(runner, one).run({}, { timeout: '1h' }))
    expect(world.clock.now() - began).toBe(600_000)
  })

  test('after an hour of trying it is undone', async () => {
    const one = saga('budget', { version: 1 })
      .step('first', does('first'), { undo: does('undo first') })
      .step('only', failing(1e9), { undo: does('undo only') })
    const runner = await started(one)
    const began = world.clock.now()
    await expect(world.soon(client(runner, one).run({}, { timeout: '3h' }))).rejects.toMatchObject({
      code: 'SAGA_COMPENSATED',
    })
    expect((world.clock.now() - began) / 60_000).toBeGreaterThan(58)
    expect((world.clock.now() - began) / 60_000).toBeLessThan(63)
    expect(log.slice(-2)).toEqual(['undo only', 'undo first'])
  })
})

describe('undo', () => {
  const refusing = (undo: () => unknown, more = {}) =>
    saga('undone', { version: 1 })
      .step('first', does('first'), { undo: does('undo first') })
      .step('second', does('second'), { undo, ...more })
      .step('third', () => {
        throw new Reject('no')
      })

  test('one that throws, at once or later, is tried again with the same undo key', async () => {
    const keys: string[] = []
    const one = saga('undone', { version: 1 })
      .step('first', (c) => c.key, {
        undo: (c) => {
          keys.push(c.undoKey)
          if (keys.length === 1) throw new Error('synchronously')
          return keys.length === 2 ? Promise.reject(new Error('later')) : c.output
        },
      })
      .step('second', () => Promise.reject(new Reject('no')))
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toThrow('no')
    expect([keys.length, new Set(keys).size]).toEqual([3, 1])
  })

  test('one that gives up after its hour leaves the saga failed, and the others undone', async () => {
    const one = refusing(() => {
      throw new Error('the refund service is broken')
    })
    const runner = await started(one)
    const error = await world.soon(client(runner, one).run({}, { timeout: '3h' })).catch((thrown) => thrown)
    expect(error).toMatchObject({ code: 'SAGA_FAILED' })
    expect(error.message).toContain(
      'the undo of second gave up (Error: the refund service is broken); the saga was being undone because of third',
    )
    expect(log).toEqual(['first', 'second', 'undo first'])
    const [found] = await client(runner, one).find({ attention: true })
    expect(await world.steps(found!.id)).toEqual({
      first: 'compensated',
      second: 'compensation_failed',
      third: 'failed',
    })
  })

  test('a time-out of an undo is 5 s, on a signal that the caller cannot abort', async () => {
    const caller = new AbortController()
    const signals: AbortSignal[] = []
    const one = saga('undone', { version: 1 })
      .step('first', does('first'), {
        undo: (c) => {
          signals.push(c.signal)
          caller.abort(new Error('gone home'))
          if (signals.length > 1) return undefined
          return new Promise((_, reject) => c.signal.addEventListener('abort', () => reject(c.signal.reason)))
        },
      })
      .step('second', () => Promise.reject(new Reject('no')))
    const runner = await started(one)
    const running = client(runner, one).run({}, { id: 'x', signal: caller.signal })
    await expect(world.soon(running)).rejects.toThrow('gone home')
    await expect(world.soon(client(runner, one).result('x'))).rejects.toThrow('no')
    expect(signals.map((signal) => signal.reason?.code)).toEqual(['TIMEOUT', undefined])
  })
})

describe('the other kinds of steps', () => {
  test('a transaction step and its result are one commit: a rollback takes both', async () => {
    const rows: string[] = []
    const put = (tx: { onRollback(undo: () => void): void }, row: string) => {
      rows.push(row)
      tx.onRollback(() => rows.splice(rows.indexOf(row), 1))
    }
    let tries = 0
    const one = saga('confirm', { version: 1 })
      .transaction(
        'confirm',
        (_c, tx: { onRollback(undo: () => void): void }) => {
          put(tx, 'confirmed')
          if (++tries === 1) throw new Error('deadlock')
          return tries
        },
        { undo: (_c, tx) => put(tx, 'reopened') },
      )
      .step('ship', () => Promise.reject(new Reject('no')))
      .onEnd((c, tx) => put(tx, `${c.status}: ${c.reason}`))
    const runner = await started(one)
    await expect(world.soon(client(runner, one).run({}))).rejects.toThrow('no')
    expect([tries, rows]).toEqual([2, ['confirmed', 'reopened', 'compensated: no']])
  })

  test('a sleep lasts as long as it says, and nobody holds it meanwhile', async () => {
    const one = saga('sleepy', { version: 1 }).step('a', does('a')).sleep('pause', '10s').step('b', does('b'))
    const runner = await started(one)
    const began = world.clock.now()
    const running = client(runner, one).run({}, { id: 'x', timeout: '1m' })
    running.catch(() => {})
    await world.clock.advance(5000)
    expect(await client(runner, one).find()).toMatchObject([{ runner: undefined, currentStep: 'pause' }])
    await world.soon(running)
    expect([log, world.clock.now() - began]).toEqual([['a', 'b'], 10_000])
  })

  test('behind the point of no return nothing is undone: held', async () => {
    const one = saga('final', { version: 1 })
      .step('a', does('a'), { undo: does('undo a') })
      .pointOfNoReturn()
      .step('b', () => Promise.reject(new Reject('no')))
    const runner = await started(one)
    const running = client(runner, one).run({}, { id: 'x' })
    await expect(world.soon(running)).rejects.toMatchObject({ code: 'SAGA_HELD', status: 'running' })
    const cancelled = world.db.withTransaction((tx) => client(runner, one).cancel(tx, 'x'))
    await expect(cancelled).rejects.toMatchObject({ code: 'SAGA_REFUSED' })
    expect(log).toEqual(['a'])
  })

  test('onEnd that fails for good: the results are kept, and a person can try the end again', async () => {
    let broken = true
    const one = saga('ending', { version: 1 })
      .step('a', does('a'))
      .onEnd((c) => {
        log.push(`end ${c.status}`)
        if (broken) throw Object.assign(new Error('duplicate'), { code: '23505', severity: 'ERROR' })
      })
    const runner = await started(one)
    const orders = client(runner, one)
    const error = await world.soon(orders.run({})).catch((thrown) => thrown)
    expect(error).toMatchObject({ code: 'SAGA_HELD', message: expect.stringContaining('onEnd failed') })
    broken = false
    await world.admin(one).retry(error.sagaId, { by: 'ann', note: 'fixed' })
    expect(await world.soon(orders.result(error.sagaId))).toEqual({ a: 'a' })
    expect(log).toEqual(['a', 'end completed', 'end completed'])
  })
})

describe('outages', () => {
  test('while all sagas fail at one step it is waited for, others go on, and nobody is compensated', async () => {
    let away = true
    let calls = 0
    const carrier = saga('carrier', { version: 1 })
      .step('a', does('a'), { undo: does('undo a') })
      .step('book', () => {
        calls++
        if (away) throw new Error('503')
        return 'booked'
      })
    const other = order()
    const runner = await started(carrier, other)
    const running = Array.from({ length: 5 }, () => client(runner, carrier).run({}, { timeout: '10h' }))
    for (const one of running) one.catch(() => {})
    await world.clock.advance(2 * 3_600_000)
    const paused = { state: 'paused', reason: 'step carrier.book is away: Error: 503', retryAt: expect.any(Date) }
    expect(runner.status()).toMatchObject({ ...paused, away: ['carrier.book'] })
    expect(await client(runner, carrier).find({ status: 'running' })).toHaveLength(5)
    expect(await world.soon(client(runner, other).run({}))).toMatchObject({ ship: 'shipped' })
    // One tries now and then, not five of them.
    expect(calls).toBeLessThan(200)
    away = false
    for (const one of running) expect(await world.soon(one)).toMatchObject({ book: 'booked' })
    expect(log).not.toContain('undo a')
    expect(runner.status()).toMatchObject({ state: 'running', away: [] })
  })

  test('a step that is away keeps nobody paused once no saga waits for it', async () => {
    const one = saga('given-up', { version: 1 })
      .step('a', does('a'))
      .step('only', () => {
        throw new Unavailable('away')
      })
    const runner = await started(one)
    const orders = client(runner, one)
    orders.run({}, { id: 'mine', timeout: '10h' }).catch(() => {})
    await world.clock.advance(60_000)
    expect(runner.status()).toMatchObject({ state: 'paused', reason: expect.stringContaining('given-up.only') })
    await world.db.withTransaction((tx) => orders.cancel(tx, 'mine'))
    await world.clock.advance(3_600_000)
    expect(runner.status()).toMatchObject({ state: 'running', away: [] })
  })

  test('one saga that fails where others arrive is not taken for an outage', async () => {
    const one = saga<{ bad: boolean }>('mixed', { version: 1 }).step('only', (c) => {
      if (c.input.bad) throw new Error('bad')
      return 1
    })
    const runner = await started(one)
    const bad = runner.client(one).run({ bad: true }, { timeout: '10h' })
    bad.catch(() => {})
    for (let i = 0; i < 100; i++) {
      await world.soon(runner.client(one).run({ bad: false }))
      await world.clock.advance(60_000)
    }
    await expect(world.soon(bad)).rejects.toMatchObject({ code: 'SAGA_COMPENSATED' })
  })

  test('a service that is away compensates nobody, even one saga alone', async () => {
    let away = true
    const one = saga('alone', { version: 1 }).step('only', () => {
      if (away) throw new Unavailable('away')
      return 1
    })
    const runner = await started(one)
    const running = client(runner, one).run({}, { timeout: '10h' })
    running.catch(() => {})
    await world.clock.advance(3 * 3_600_000)
    away = false
    expect(await world.soon(running)).toEqual({ only: 1 })
  })
})
