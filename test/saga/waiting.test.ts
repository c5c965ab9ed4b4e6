import { afterEach, describe, expect, test } from 'vitest'
import { Unavailable } from '../../src/index.ts'
import { type AnySaga, type SagaClient, saga } from '../../src/saga/index.ts'
import { deferred, inMemory } from './support.ts'

/** Who waits for a saga, here and for one that another process runs. */
let world = inMemory()
afterEach(async () => {
  await world.end()
  world = inMemory()
})

type Client = SagaClient<unknown, unknown, Record<string, unknown>>
const client = (runner: { client(one: never): unknown }, one: AnySaga) => runner.client(one as never) as Client
const start = (one: AnySaga) => world.db.withTransaction((tx) => client(world.runner([one]), one).start(tx, {}))

/** The world's sagas as another process has them, and how often it looks for those it waits for. */
function elsewhere(instead?: () => Promise<never>, insert?: () => Promise<boolean>) {
  const { sagas } = world.db
  const looks: (readonly string[])[] = []
  const ended = async (ids: readonly string[]) => {
    looks.push(ids)
    return instead === undefined ? sagas.ended(ids) : instead()
  }
  const load = async (...args: Parameters<typeof sagas.load>) => {
    looks.push([args[1]])
    return instead === undefined ? sagas.load(...args) : instead()
  }
  const proxy = new Proxy(sagas, {
    get: (target, name) => {
      if (name === 'insert' && insert !== undefined) return insert
      if (name === 'ended' || name === 'load') return name === 'ended' ? ended : load
      const value = Reflect.get(target, name, target)
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
  return { looks, store: { sagas: proxy, withTransaction: world.db.withTransaction.bind(world.db) } as never }
}

describe('for sagas of another process', () => {
  test('all who wait share one look, which comes less and less often, and ends with the last of them', async () => {
    const one = saga('waited', { version: 1 }).sleep('pause', '10s')
    await world.runner([one], { concurrency: 64 }).start()
    const ids = await Promise.all(Array.from({ length: 50 }, () => start(one)))
    const { looks, store } = elsewhere()
    const waits = ids.map((id) => client(world.runner([one], { store }), one).result(id))
    expect(await world.soon(Promise.all(waits))).toHaveLength(50)
    expect(looks[0]).toHaveLength(50)
    // Doubling from 20 ms to a second, for ten seconds; for each alone it would be 50 times as many.
    expect(looks.length).toBeLessThan(25)
    const before = looks.length
    await world.clock.advance(10_000)
    expect(looks).toHaveLength(before)
  })

  test('one who comes later is looked for at once, and another may begin after all have gone', async () => {
    const one = saga('later', { version: 1 }).sleep('pause', '1m')
    await world.runner([one]).start()
    const [first, second] = [await start(one), await start(one)]
    const { looks, store } = elsewhere()
    const orders = client(world.runner([one], { store }), one)
    const waits = orders.result(first, { timeout: '2m' })
    await world.clock.advance(30_000)
    const before = looks.length
    const joins = orders.result(second, { timeout: '2m' })
    await world.clock.settle()
    expect(looks.length).toBeGreaterThan(before)
    await world.soon(Promise.all([waits, joins]))
    const third = orders.result(await start(one), { timeout: '2m' })
    expect(await world.soon(third)).toEqual({ pause: undefined })
  })

  test('a caller who gives up, or whose time is up, leaves the others waiting', async () => {
    const one = saga('left', { version: 1 }).sleep('pause', '20s')
    await world.runner([one]).start()
    const id = await start(one)
    const { store } = elsewhere()
    const orders = client(world.runner([one], { store }), one)
    const stop = new AbortController()
    const stays = orders.result(id)
    const leaves = orders.result(id, { signal: stop.signal })
    const late = orders.result(id, { timeout: '2s' })
    await world.clock.advance(1000)
    stop.abort(new Error('enough'))
    await expect(leaves).rejects.toThrow('enough')
    await expect(world.soon(late)).rejects.toMatchObject({ code: 'SAGA_TIMEOUT', status: 'running' })
    expect(await world.soon(stays)).toEqual({ pause: undefined })
  })

  test('what no later look can mend is an error at once', async () => {
    const one = saga('broken', { version: 1 }).sleep('pause', '20s')
    const id = await start(one)
    const { store } = elsewhere(() =>
      Promise.reject(Object.assign(new Error('bad text'), { code: '22P02', severity: 'ERROR' })),
    )
    await expect(client(world.runner([one], { store }), one).result(id)).rejects.toMatchObject({ code: '22P02' })
  })

  test.each([
    ['is away', () => Promise.reject(new Unavailable('away'))],
    ['never answers', () => new Promise<never>(() => {})],
  ])('a store that %s keeps no caller beyond the time-out', async (_, answer) => {
    const one = saga('away', { version: 1 }).sleep('pause', '20s')
    const id = await start(one)
    const { looks, store } = elsewhere(answer)
    const began = world.clock.now()
    const waits = client(world.runner([one], { store }), one).result(id, { timeout: '5s' })
    await expect(world.soon(waits, 60_000)).rejects.toMatchObject({ code: 'SAGA_TIMEOUT', sagaId: id })
    expect(looks.length).toBeGreaterThan(1)
    expect(world.clock.now() - began).toBeLessThan(10_000)
  })
})

describe('for sagas that are driven here', () => {
  test('a store that answers is not taken for one that does not, however short the time', async () => {
    const one = saga('brief', { version: 1 }).sleep('pause', '10s')
    const insert = deferred<boolean>()
    const { store } = elsewhere(undefined, () => insert.promise)
    const asked = client(world.runner([one], { store }), one).run({}, { timeout: 0 })
    asked.catch(() => {})
    await world.clock.advance(500)
    insert.resolve(true)
    // It was not written, and that is known: of one that was, it would be said what it waits for.
    await expect(world.soon(asked)).rejects.toMatchObject({ code: 'SAGA_UNKNOWN' })
    const brief = client(world.runner([one]), one).run({}, { timeout: 0 })
    await expect(world.soon(brief)).rejects.toMatchObject({ code: 'SAGA_TIMEOUT', status: 'running' })
  })

  test.each([
    ['by a runner', true],
    ['by the caller', false],
  ])('a store that never answers the first write, %s, keeps no caller beyond the time-out', async (_, started) => {
    const one = saga('hangs', { version: 1 }).step('a', () => 1)
    const insert = deferred<boolean>()
    const { store } = elsewhere(undefined, () => insert.promise)
    const runner = world.runner([one], { store })
    if (started) await runner.start()
    await world.clock.settle()
    const began = world.clock.now()
    const [stop, reason] = [new AbortController(), new Error('enough')]
    const left = client(runner, one).run({}, { signal: stop.signal })
    stop.abort(reason)
    await expect(world.soon(left, 60_000)).rejects.toBe(reason)
    const waits = client(runner, one).run({}, { id: 'mine', timeout: '5s' })
    await expect(world.soon(waits, 60_000)).rejects.toMatchObject({
      code: 'SAGA_TIMEOUT',
      message: expect.stringContaining('nobody knows whether it has begun'),
    })
    expect(world.clock.now() - began).toBeLessThan(6000)
    // The answer comes after all: it has begun, and is reported.
    insert.resolve(true)
    await world.clock.settle()
    expect(world.telemetry.of('saga.started')).toHaveLength(2)
  })

  test('no look is needed, and no time passes', async () => {
    const gate = deferred<number>()
    const one = saga('here', { version: 1 }).step('a', () => gate.promise)
    const { looks, store } = elsewhere()
    const runner = await world.runner([one], { store }).start()
    const runs = client(runner, one).run({}, { id: 'mine' })
    await world.clock.settle()
    expect(looks).toEqual([])
    const waits = client(runner, one).result('mine')
    await world.clock.settle()
    gate.resolve(7)
    // Nothing advances the clock.
    expect([await runs, await waits]).toEqual([{ a: 7 }, { a: 7 }])
    expect(looks).toHaveLength(2)
  })
})
