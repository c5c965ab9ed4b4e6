import { describe, expect, it, test } from 'vitest'
import { event, Reject, Unavailable } from '../../src/core/index.ts'
import { Flow, fromIterable, generate, Supervisor, Task, type Worker } from '../../src/flow/index.ts'
import { Condition } from '../../src/flow/status.ts'
import { Cleaner, Engine, Relay, Router, RoutingRelay } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { Projector, projection } from '../../src/projection/index.ts'
import { DueWorker } from '../../src/redis/due-worker.ts'
import { OutboxRepair } from '../../src/redis/repair.ts'
import { saga as define, SagaRunner } from '../../src/saga/index.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { deferred, flowOf, message, Store, stop } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const at = (clock: FakeClock, ms = 0) => new Date(clock.now() + ms)

/** What a worker needs, which may be away. */
class World {
  readonly clock = new FakeClock()
  up = true

  readonly use = (): undefined => {
    if (!this.up) throw new Unavailable('the server is away')
  }

  get store(): Store {
    const store = new Store(this.clock)
    store.before.take = this.use
    return store
  }
}

const step = { each: () => {} }

/** Each kind of worker on what it uses, and what it is while that is away. */
const KINDS: Record<string, (world: World) => Worker | Promise<Worker>> = {
  Flow: ({ clock, store: from }) => new Flow({ name: 'f', from, step, clock }) as unknown as Flow,
  'Flow from a pipe': ({ clock, use }) =>
    new Flow({ name: 'f', from: generate('g', use), step, clock }) as unknown as Flow,
  Consumer: ({ clock, store }) => new Router('r').consume(store, { clock }) as unknown as Flow,
  Task: ({ clock, use }) => new Task({ name: 't', every: 1000, clock, run: async () => use() }),
  Cleaner: ({ clock, use }) =>
    new Cleaner({ of: { name: 'o', clean: async () => use() ?? 0 }, every: 1000, clock }) as unknown as Task,
  'due worker': ({ clock, use }) => {
    const due = { name: 'due', shards: ['only'], find: async () => use() ?? [] }
    return new DueWorker(due as never, { event: () => Placed({ n: 1 }), clock }) as unknown as Task
  },
  'repair worker': ({ clock, use }) => {
    const shard = { run: async () => use() ?? ['0', 0, 0, 0, 0] }
    const shards = { each: (work: (one: typeof shard) => Promise<void>) => work(shard) }
    return new OutboxRepair('o', shards as never, { every: 1000, clock }) as unknown as Task
  },
  Relay: ({ clock, store }) => new Relay({ from: store, to: async () => {}, clock }) as unknown as Worker,
  Engine: async ({ clock, store }) => {
    const engine = new Engine('e', { clock })
    await engine.input('in', store, { clock })
    return engine as unknown as Worker
  },
  RoutingRelay: async ({ clock, use }) => {
    const db = memory({ clock, outbox: { branches: ['a'] } })
    await db.withTransaction((tx) =>
      db.outbox.enqueue(
        tx,
        [1, 2, 3].map((n) => Placed({ n })),
      ),
    )
    return new RoutingRelay({
      from: db.outbox,
      to: { a: async () => use() },
      routes: { '#': 'a' },
      clock,
    }) as unknown as Worker
  },
  SagaRunner: ({ clock, use }) => {
    const db = memory({ clock })
    const claim = db.sagas.claim.bind(db.sagas)
    db.sagas.claim = async (asked) => use() ?? claim(asked)
    const saga = define('s', { version: 1 }).step('only', () => {})
    return new SagaRunner({ store: db, sagas: [saga], clock }) as unknown as Worker
  },
  Projector: ({ clock, use }) => {
    const head = { position: 0n, incarnation: 'one', trimmed: 0n }
    const log = {
      id: 'l',
      head: async () => use() ?? head,
      read: async (upTo: bigint) => use() ?? { events: [], upTo },
    }
    const projections = {
      open: async () => ({ ...head, log: 'l', builtAt: new Date(0) }),
      view: async () => ({}),
      parkedKeys: async () => ({ keys: [], count: 0 }),
      due: async () => [],
      report: async () => {},
    }
    const term = { shard: 0, epoch: '1', abandoned: false, probe: undefined }
    const leadership = () => ({
      acquire: async () => use() ?? term,
      renew: async () => use() ?? true,
      release: async () => {},
    })
    const view = projection('p', { version: 1, table: 't', key: 'id' })
    const store = { projections, leadership } as never
    return new Projector({ store, log: log as never, projections: [view], clock }) as unknown as Worker
  },
  Supervisor: async ({ clock, use }) => {
    const supervisor = new Supervisor({ name: 's', clock })
    await supervisor.add(new Task({ name: 't', every: 1000, clock, run: async () => use() }))
    return supervisor as unknown as Worker
  },
}

describe.each(Object.entries(KINDS))('%s', (name, make) => {
  it('says how it is: stopped, starting, running, kept from it by what and until when, draining', async () => {
    const world = new World()
    const { clock } = world
    const worker = await make(world)
    expect(worker.status()).toMatchObject({ name: worker.name, state: 'stopped', since: at(clock) })
    expect(worker.status().reason).toBeUndefined()
    world.up = false
    const starting = worker.start()
    expect(worker.status().state).toBe('starting')
    await starting
    await clock.settle()
    const trouble = name === 'RoutingRelay' ? 'paused' : 'failing'
    const away = worker.status()
    expect(away).toMatchObject({ state: trouble, reason: expect.stringContaining('the server is away') })
    expect(away.retryAt!.getTime()).toBeGreaterThan(clock.now())
    await clock.advance(500)
    expect(worker.status()).toMatchObject({ state: trouble, since: away.since })
    world.up = true
    await clock.until(() => worker.status().state === 'running')
    const running = worker.status()
    expect([running.reason, running.retryAt, running.since]).toEqual([undefined, undefined, at(clock)])
    const stopping = worker.stop()
    expect(worker.status()).toMatchObject({ state: 'draining', since: at(clock) })
    await clock.settle()
    await stopping
    expect(worker.status()).toMatchObject({ state: 'stopped' })
    await worker.start()
    await clock.until(() => worker.status().state === 'running')
    await worker.stop()
  })
})

describe('a flow', () => {
  it('is paused while what its step needs is away: since when, why, until when, and how much is unsettled', async () => {
    const world = new World()
    const { clock } = world
    const flow = flowOf(clock, new Store(clock).addMany(3), { each: world.use })
    world.up = false
    const began = at(clock)
    await flow.start()
    await clock.settle()
    const paused = { state: 'paused', reason: expect.stringContaining('the server is away'), unsettled: 3 }
    expect(flow.status()).toMatchObject({ ...paused, since: began, retryAt: at(clock, 200) })
    expect(flow.status().lastSuccess).toBeUndefined()
    await clock.advance(201)
    expect(flow.status()).toMatchObject({ ...paused, since: began })
    world.up = true
    await clock.advance(1000)
    expect(flow.status()).toMatchObject({ state: 'running', unsettled: 0, lastSuccess: expect.any(Date) })
    await stop(clock, flow)
  })

  it('does not stay paused when nothing is left that could be tried', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    let error: Error = new Unavailable('away')
    const each = () => {
      throw error
    }
    const flow = flowOf(clock, store, { each }, { poll: 1000, maxPoll: 2000 })
    await flow.start()
    await clock.settle()
    expect(flow.status().state).toBe('paused')
    error = new Reject('bad')
    await clock.until(() => store.row('a').state === 'dead')
    await clock.advance(10_000)
    expect(flow.status().state).toBe('running')
    await stop(clock, flow)
  })

  it('is failing while its right to what it has taken has run out, and says why that was not renewed', async () => {
    const clock = new FakeClock()
    let live = true
    const store = new Store(clock, { live: () => live, extendEvery: 1000 }).addMany(2)
    const first = deferred()
    const flow = flowOf(clock, store, { each: ({ message }) => (message.id === 'm0' ? first.promise : undefined) })
    await flow.start()
    await clock.settle()
    live = false
    store.add('m2')
    store.before.extend = () => {
      throw new Unavailable('the server is away')
    }
    await clock.advance(5000)
    first.resolve()
    await clock.settle()
    const stuck = { state: 'failing', reason: expect.stringContaining('the server is away'), unsettled: 1 }
    expect(flow.status()).toMatchObject(stuck)
    live = true
    delete store.before.extend
    await clock.advance(5000)
    expect(flow.status()).toMatchObject({ state: 'running', unsettled: 0 })
    expect(store.in('done')).toEqual(['m0', 'm1', 'm2'])
    await stop(clock, flow)
  })

  it('is failing while its source cannot be opened, is lost, or what is done cannot be written', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('a')
    store.before.open = () => Promise.reject(new Error('no server'))
    const flow = flowOf(clock, store, step)
    await flow.start()
    await clock.settle()
    expect(flow.status()).toMatchObject({ state: 'failing', reason: 'Error: no server', retryAt: at(clock, 200) })
    store.before = { settle: () => Promise.reject(new Error('the disk is full')) }
    await clock.advance(201)
    expect(flow.status()).toMatchObject({ state: 'failing', reason: 'Error: the disk is full', unsettled: 1 })
    store.before = {}
    await clock.advance(1000)
    expect(flow.status()).toMatchObject({ state: 'running', unsettled: 0 })
    store.lose(new Error('connection reset'))
    await clock.settle()
    expect(flow.status()).toMatchObject({
      state: 'failing',
      reason: 'Error: connection reset',
      retryAt: at(clock, 200),
    })
    await clock.advance(201)
    expect(flow.status().state).toBe('running')
    await stop(clock, flow)
  })

  it('waits where its source says that another may read', async () => {
    const clock = new FakeClock()
    const waiting = () => ({ reason: 'another owns it: host:1', until: at(clock, 5000) })
    const from = { name: 's', features: {}, open: async () => undefined, waiting }
    const flow = new Flow({ name: 'f', from, step, clock, poll: 1000 })
    await flow.start()
    await clock.settle()
    const since = at(clock)
    expect(flow.status()).toMatchObject({
      state: 'waiting',
      reason: 'another owns it: host:1',
      retryAt: at(clock, 1000),
    })
    await clock.advance(3000)
    expect(flow.status()).toMatchObject({ state: 'waiting', since })
    await flow.stop()
  })

  it('drains with what it has', async () => {
    const clock = new FakeClock()
    const handled = deferred()
    const flow = flowOf(clock, new Store(clock).addMany(2), { each: () => handled.promise })
    await flow.start()
    await clock.settle()
    const stopping = flow.stop()
    await clock.settle()
    expect(flow.status()).toMatchObject({ state: 'draining', unsettled: 2 })
    handled.resolve()
    await stopping
    expect(flow.status()).toMatchObject({ state: 'stopped' })
    expect(flow.status().unsettled).toBeUndefined()
  })

  it('from an iterable that threw is failing for good: nothing will come', async () => {
    const clock = new FakeClock()
    function* broken() {
      yield message('a')
      throw new Error('the file is cut off')
    }
    const flow = new Flow({ name: 'f', from: fromIterable('broken', broken(), { clock }), step, clock })
    await flow.start()
    await clock.advance(60_000)
    expect(flow.status()).toMatchObject({ state: 'failing', reason: 'Error: the file is cut off', unsettled: 0 })
    await flow.stop()
  })
})

describe('a relay', () => {
  test('that waits for the lease of another says whose, and until when; and is running once it has it', async () => {
    const clock = new FakeClock()
    const db = memory({ clock })
    const [first, second] = [1, 2].map(() => new Relay({ from: db.outbox, to: async () => {}, clock }))
    await first!.start()
    await clock.settle()
    await second!.start()
    await clock.settle()
    const { holder } = (await db.outbox.leadership.terms())[0]!
    const until = at(clock, 60_000).toISOString()
    expect(second!.status()).toMatchObject({
      state: 'waiting',
      reason: `outbox: another relay owns it: ${holder}, until ${until} unless it is renewed`,
      retryAt: at(clock, 1000),
    })
    expect(first!.status()).toMatchObject({ state: 'running' })
    await first!.stop()
    await clock.advance(1000)
    expect(second!.status()).toMatchObject({ state: 'running' })
    await second!.stop()
  })

  test('that is kept out because others read in another way says whom', async () => {
    const clock = new FakeClock()
    const db = memory({ clock })
    const owner = new Relay({ from: db.outbox, to: async () => {}, reader: 'owner', clock })
    const lease = new Relay({ from: db.outbox, to: async () => {}, reader: 'lease', clock })
    await owner.start()
    await clock.settle()
    await lease.start()
    await clock.settle()
    expect(lease.status()).toMatchObject({
      state: 'waiting',
      reason: expect.stringMatching(
        /^it reads as owner\/1, and this relay as lease: .+, until .+Z unless it is renewed$/,
      ),
      retryAt: at(clock, 2000),
    })
    await owner.stop()
    await clock.advance(2000)
    expect(lease.status()).toMatchObject({ state: 'running' })
    await lease.stop()
  })

  test('that has no shard because others have them all says so, rather than that it runs', async () => {
    const clock = new FakeClock()
    const db = memory({ clock })
    const relays = [1, 2, 3].map(() => new Relay({ from: db.outbox, to: async () => {}, shards: 2, clock }))
    for (const relay of relays) await relay.start()
    await clock.advance(45_000)
    const states = relays.map((relay) => relay.status()).filter(({ state }) => state === 'waiting')
    const terms = await db.outbox.leadership.terms()
    const holders = terms.map(({ holder }) => holder).join(', ')
    const until = at(clock, Math.min(...terms.map(({ expiresIn }) => expiresIn))).toISOString()
    const reason = `other relays read all of it: ${holders}, the first until ${until} unless it is renewed`
    expect(states).toMatchObject([{ reason }])
    await Promise.all(relays.map((relay) => relay.stop()))
  })

  test('counts as success what it has published, and not that it may read', async () => {
    const clock = new FakeClock()
    const db = memory({ clock })
    const relay = new Relay({ from: db.outbox, to: async () => {}, clock })
    await relay.start()
    await clock.advance(60_000)
    expect(relay.status().lastSuccess).toBeUndefined()
    await db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 })))
    await clock.settle()
    const published = at(clock)
    await clock.advance(60_000)
    expect(relay.status()).toMatchObject({ state: 'running', lastSuccess: published, unsettled: 0 })
    await relay.stop()
  })
})

test('who waits says for what after some seconds, once, and again when it waits anew', async () => {
  const clock = new FakeClock()
  const told: [string, number][] = []
  const condition = new Condition(clock, (reason, waitedFor) => told.push([reason, waitedFor]))
  condition.starting()
  const wait = async (ms: number) => {
    condition.hinder('owner', 'waiting', 'web-2 runs it')
    await clock.advance(ms)
  }
  for (let i = 0; i < 10; i++) await wait(1000)
  expect(told).toEqual([['web-2 runs it', 3000]])
  condition.clear('owner')
  await wait(1000)
  condition.hinder('owner', 'waiting', 'web-2 runs it')
  expect(told).toHaveLength(1)
  for (let i = 0; i < 3; i++) await wait(1000)
  expect(told).toHaveLength(2)
})
