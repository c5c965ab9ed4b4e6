import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { EventCollector, event, type Message, Reject, Router, saveEvents } from '../../src/index.ts'
import { type AnySaga, type SagaRunnerOptions, saga, sagaReplies } from '../../src/saga/index.ts'
import { inMemory } from './support.ts'

const Ship = event<{ order: string }>('ship.wanted')
const Cancel = event<{ order: string; parcel?: number | undefined }>('ship.cancel')
const Shipped = event<{ parcel: number }>('ship.done')
const Refused = event<{ why: string }>('ship.refused')
const Cancelled = event<object>('ship.cancelled')
const Weighed = event<{ grams: number }>('parcel.weighed')
const Paid = event<{ order: string; amount: number }>('bank.paid')

interface Order {
  id: string
}

let world: ReturnType<typeof inMemory>
/** What was committed to the outbox, in order. */
let sent: Message[]

beforeEach(() => {
  world = inMemory()
  sent = []
  const { outbox } = world.db
  const enqueue = outbox.enqueue.bind(outbox) as (tx: unknown, events: readonly Message[]) => Promise<string[]>
  ;(outbox as { enqueue: unknown }).enqueue = async (tx: never, events: readonly Message[]) => {
    const sequences = await enqueue(tx, events)
    ;(tx as { atCommit(fn: () => void): void }).atCommit(() => sent.push(...events))
    return sequences
  }
})
afterEach(() => world.end())

const context = { signal: new AbortController().signal, attempt: 1, router: 'x', ack: () => true, nack: () => true }

const base = (released: string[] = []) =>
  saga<Order>('order', { version: 1, aggregate: ({ id }) => id }).step('reserve', () => ({ shelf: 3 }), {
    undo: ({ key }) => void released.push(key),
  })

const shipping = (more: object = {}, released: string[] = []) =>
  base(released)
    .request('ship', {
      send: (c) => Ship({ order: c.input.id }),
      reply: Shipped,
      refused: Refused,
      undo: (c) => Cancel({ order: c.input.id, parcel: c.output?.parcel }),
      ...more,
    })
    .step('bill', (c) => c.results.ship.parcel * 2, { undo: () => {} })

async function begun(one: AnySaga, input: object = { id: 'A' }, options: Partial<SagaRunnerOptions<unknown>> = {}) {
  const runner = world.runner([one], options)
  const client = runner.client(one)
  const id = await world.db.withTransaction((tx) => client.start(tx, input))
  await runner.start()
  await world.clock.advance(10)
  const router = sagaReplies({ store: world.db as never, sagas: [one] })
  const reply = async (message: Message) => {
    await router.handle(message, context)
    await world.clock.advance(10)
  }
  return { id, runner, client, reply, router }
}

/** As a participant's router answers. */
async function answer(request: Message, ...outputs: Message[]): Promise<readonly Message[]> {
  const router = new Router('participant').on(
    { ...event(request.type), decode: (m: Message) => m } as never,
    () => outputs,
  )
  return (await router.handle(request, context)) as readonly Message[]
}

describe('a request', () => {
  test('goes through the outbox with the intent, carries its saga, and its reply completes the saga', async () => {
    const one = shipping()
    const { id, client, reply } = await begun(one)
    expect(sent.map(({ type }) => type)).toEqual(['ship.wanted'])
    const { key } = (await world.load(id)).steps[1]!
    expect(sent[0]!.extensions).toMatchObject({
      sagatype: 'order',
      sagaid: id,
      sagastep: 'ship',
      sagakey: key,
      sagareplies: 'ship.done ship.refused',
      partitionkey: key,
    })
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 21 }))
    await reply(shipped!)
    expect(await client.result(id)).toEqual({ reserve: { shelf: 3 }, ship: { parcel: 21 }, bill: 42 })
  })

  test('no runner has the saga while it waits', async () => {
    const { id } = await begun(shipping())
    expect(await world.load(id)).toMatchObject({ runner: undefined, status: 'running', currentStep: 'ship' })
  })

  test('that it was sent and its message are one write: both are there, or neither', async () => {
    const { outbox } = world.db
    const enqueue = outbox.enqueue as (...args: unknown[]) => unknown
    let failures = 1
    Object.assign(outbox, {
      enqueue: (...args: unknown[]) => {
        if (failures-- > 0) throw new Error('the outbox is full')
        return enqueue(...args)
      },
    })
    const { id } = await begun(shipping())
    expect((await world.load(id)).steps[1]?.sends ?? 0).toBe(0)
    expect(sent).toEqual([])
    await world.clock.advance(60_000)
    expect((await world.load(id)).steps[1]).toMatchObject({ status: 'pending', sends: 1 })
    expect(sent).toHaveLength(1)
  })

  test('a refusal undoes what came before, and run() throws a Reject', async () => {
    const released: string[] = []
    const one = shipping({}, released)
    const { id, client, reply } = await begun(one)
    const [refused] = await answer(sent[0]!, Refused({ why: 'secret' }))
    await reply(refused!)
    expect(await world.steps(id)).toEqual({ reserve: 'compensated', ship: 'failed' })
    await expect(client.result(id)).rejects.toThrow(Reject)
    // No payload in the reason.
    expect(JSON.stringify((await world.load(id)).error)).not.toContain('secret')
    expect(released).toHaveLength(1)
    expect(sent).toHaveLength(1)
  })

  test('no answer within its time: undone by a message with the same key, then what came before it', async () => {
    const { id } = await begun(shipping({ within: '30s' }))
    await world.clock.advance(31_000)
    await world.clock.advance(1000)
    expect(sent.map(({ type }) => type)).toEqual(['ship.wanted', 'ship.cancel'])
    const [request, undo] = sent
    expect(undo!.key).toBe(request!.key)
    expect(undo!.extensions).toMatchObject({ sagaundo: 1, sagakey: request!.extensions['sagakey'] })
    expect(undo!.extensions['sagareplies']).toBeUndefined()
    expect(await world.load(id)).toMatchObject({ status: 'compensated', error: 'ship: no answer within 30 s' })
  })

  test('the deadline is five minutes where none is given', async () => {
    const { id } = await begun(shipping())
    await world.clock.advance(299_000)
    expect((await world.load(id)).status).toBe('running')
    await world.clock.advance(2000)
    await world.clock.advance(1000)
    expect((await world.load(id)).status).toBe('compensated')
  })

  test('each send has an id of its own, the key stays', async () => {
    await begun(shipping({ within: '30s', unknown: 'retry' }))
    for (let i = 0; i < 3; i++) await world.clock.advance(31_000)
    expect(sent.length).toBeGreaterThan(2)
    expect(new Set(sent.map(({ id }) => id)).size).toBe(sent.length)
    expect(new Set(sent.map(({ key }) => key)).size).toBe(1)
  })

  test('a saga can begin with one: run() enqueues it with the saga and waits for the reply', async () => {
    const one = saga<Order>('first', { version: 1 }).request('ship', {
      send: (c) => Ship({ order: c.input.id }),
      reply: Shipped,
    })
    const runner = await world.runner([one]).start()
    const running = runner.client(one).run({ id: 'A' })
    await world.clock.advance(50)
    expect(sent).toHaveLength(1)
    const router = sagaReplies({ store: world.db as never, sagas: [one] })
    for (const shipped of await answer(sent[0]!, Shipped({ parcel: 1 }))) await router.handle(shipped, context)
    expect(await world.soon(running)).toEqual({ ship: { parcel: 1 } })
  })

  test('each send has an id of its own and the key of the step, or an inbox would swallow the second', async () => {
    await begun(shipping({ unknown: 'retry', within: '1m' }))
    for (let i = 0; i < 2; i++) await world.clock.advance(61_000)
    expect(sent.map(({ type }) => type)).toEqual(['ship.wanted', 'ship.wanted', 'ship.wanted'])
    expect(new Set(sent.map(({ id }) => id)).size).toBe(3)
    expect(new Set(sent.map(({ extensions }) => extensions['sagakey'])).size).toBe(1)
  })

  test('a message that cannot be made: tried again, nothing is sent, nothing is lost', async () => {
    let broken = true
    const one = base().request('ship', {
      send: (c) => {
        if (broken) throw new Error('bug')
        return Ship({ order: c.input.id })
      },
      reply: Shipped,
    })
    const { id } = await begun(one)
    expect(await world.steps(id)).toEqual({ reserve: 'completed', ship: 'pending' })
    expect((await world.load(id)).steps[1]).toMatchObject({ sends: 0, attempts: 1, error: 'Error: bug' })
    broken = false
    await world.clock.advance(2000)
    expect(sent).toHaveLength(1)
  })

  test('one that can never be made is refused: what came before it is undone', async () => {
    const one = base().request('ship', { send: () => 'no message' as never, reply: Shipped })
    const { id } = await begun(one)
    expect(await world.steps(id)).toEqual({ reserve: 'compensated', ship: 'failed' })
  })

  test('start() throws where its first message cannot be made, and starts nothing', async () => {
    const one = saga<Order>('first', { version: 1 }).request('ship', {
      send: () => {
        throw new Error('bug')
      },
      reply: Shipped,
    })
    const client = world.runner([one]).client(one)
    await expect(world.db.withTransaction((tx) => client.start(tx, { id: 'A' }))).rejects.toThrow('bug')
    expect(await client.find()).toEqual([])
  })
})

describe('replies', () => {
  test('whoever waits in this process is told of an end that a reply or a person brings: no time passes', async () => {
    const one = saga<Order>('first', { version: 1 }).request('ship', {
      send: (c) => Ship({ order: c.input.id }),
      reply: Shipped,
    })
    const client = world.runner([one]).client(one)
    const waiting = client.run({ id: 'A' })
    const held = client.run({ id: 'B' })
    await world.clock.settle()
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 4 }))
    await sagaReplies({ store: world.db as never, sagas: [one] }).handle(shipped!, context)
    const other = sent[1]!.extensions['sagaid'] as string
    await world.admin(one).hold(other, { by: 'ann', note: 'wait' })
    expect(await waiting).toEqual({ ship: { parcel: 4 } })
    await expect(held).rejects.toMatchObject({ code: 'SAGA_HELD' })
  })

  test('the saga is copied to outputs of the expected types only', async () => {
    await begun(shipping())
    const outputs = await answer(sent[0]!, Weighed({ grams: 9 }), Shipped({ parcel: 1 }))
    expect(outputs[0]!.extensions['sagaid']).toBeUndefined()
    expect(outputs[1]!.extensions).toMatchObject({ sagatype: 'order', sagastep: 'ship' })
    // Nor does it go on from there: a reply expects no reply.
    expect(outputs[1]!.extensions['sagareplies']).toBeUndefined()
  })

  test('the same reply twice changes nothing the second time, with the same id or another', async () => {
    const { id, reply } = await begun(shipping())
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 1 }))
    await reply(shipped!)
    const { version } = await world.load(id)
    await reply(shipped!)
    await reply(shipped!.with({ id: 'another' }))
    expect((await world.load(id)).version).toBe(version)
  })

  test("a reply of another service's saga is acked, one of an unknown saga is SAGA_GONE", async () => {
    const { reply } = await begun(shipping())
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 1 }))
    await reply(shipped!.with({ id: '1', extensions: { sagatype: 'of another service' } }))
    const unknown = { sagaid: '00000000-0000-7000-8000-00000000dead' }
    await expect(reply(shipped!.with({ id: '2', extensions: unknown }))).rejects.toMatchObject({ code: 'SAGA_GONE' })
    await expect(reply(shipped!.with({ id: '3', extensions: { sagaid: 'x' } }))).rejects.toBeInstanceOf(Reject)
    // An event of that type that answers nobody.
    await reply(Shipped({ parcel: 5 }))
  })

  test('a reply that does not say which step it answers is a dead letter, not the reply to another', async () => {
    const { id, reply } = await begun(shipping())
    const { sagatype, sagaid } = sent[0]!.extensions
    const nameless = Shipped({ parcel: 1 }).with({ extensions: { sagatype, sagaid } as never })
    await expect(reply(nameless)).rejects.toThrow(/sagastep/)
    expect(await world.steps(id)).toEqual({ reserve: 'completed', ship: 'pending' })
  })

  test('after the retention, 30 days, a reply is SAGA_GONE', async () => {
    const { reply, runner } = await begun(shipping({ within: '30s' }))
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 1 }))
    for (let i = 0; i < 3; i++) await world.clock.advance(31_000)
    await world.soon(runner.stop())
    const day = 86_400_000
    await world.clock.advance(29 * day)
    expect(await world.db.sagas.clean()).toBe(0)
    await world.clock.advance(2 * day)
    expect(await world.db.sagas.clean()).toBe(1)
    await expect(reply(shipped!)).rejects.toMatchObject({ code: 'SAGA_GONE' })
  })

  test('a success after compensated undoes the step again, with a new key; the second time nothing happens', async () => {
    const { id, reply } = await begun(shipping({ within: '30s' }))
    const [shipped] = await answer(sent[0]!, Shipped({ parcel: 8 }))
    for (let i = 0; i < 3; i++) await world.clock.advance(31_000)
    expect((await world.load(id)).status).toBe('compensated')
    await reply(shipped!)
    expect(sent.map(({ type }) => type)).toEqual(['ship.wanted', 'ship.cancel', 'ship.cancel'])
    expect(sent[2]!.extensions['sagaundo']).toBe(2)
    expect(sent[2]!.data).toEqual({ order: 'A', parcel: 8 })
    await reply(shipped!.with({ id: 'again' }))
    expect(sent).toHaveLength(3)
    expect(await world.load(id)).toMatchObject({ status: 'compensated', error: 'ship succeeded late' })
  })

  test('onEnd of a saga that a reply ends is left to a runner, with its retries', async () => {
    const ends: string[] = []
    const one = base()
      .request('ship', { send: (c) => Ship({ order: c.input.id }), reply: Shipped })
      .onEnd((c) => void ends.push(c.status))
    const { reply, id } = await begun(one)
    for (const shipped of await answer(sent[0]!, Shipped({ parcel: 1 }))) await reply(shipped)
    expect(ends).toEqual(['completed'])
    expect((await world.load(id)).status).toBe('completed')
  })

  test('undone with its confirmation only, where one is expected', async () => {
    const { id, reply } = await begun(shipping({ within: '30s', undone: Cancelled }))
    await world.clock.advance(31_000)
    expect((await world.load(id)).status).toBe('compensating')
    const undo = sent[1]!
    expect(undo.extensions['sagareplies']).toBe('ship.cancelled')
    const [cancelled] = await answer(undo, Cancelled({}))
    await reply(cancelled!)
    await world.clock.advance(1000)
    expect((await world.load(id)).status).toBe('compensated')
  })

  test('a compensation that is stuck is failed after its time, and waits for a person', async () => {
    const { id, client } = await begun(shipping({ within: '30s', undone: Cancelled, undoBudget: '2m' }))
    for (let i = 0; i < 8; i++) await world.clock.advance(31_000)
    expect(await world.load(id)).toMatchObject({ status: 'failed' })
    expect(await client.find({ attention: true })).toHaveLength(1)
  })

  test('a reply that comes while an operator holds the saga is recorded', async () => {
    const one = shipping()
    const { id, reply } = await begun(one)
    const admin = world.admin(one)
    await admin.hold(id, { by: 'ann', note: 'look' })
    for (const shipped of await answer(sent[0]!, Shipped({ parcel: 1 }))) await reply(shipped)
    expect(await world.steps(id)).toEqual({ reserve: 'completed', ship: 'completed' })
    await admin.retry(id, { by: 'ann', note: 'go on' })
    await world.clock.advance(1000)
    expect((await world.load(id)).status).toBe('completed')
  })
})

describe('a message from outside', () => {
  const paid = () =>
    saga<Order>('paid', { version: 1, aggregate: ({ id }) => id })
      .sleep('grace', '1m')
      .request('payment', { reply: Paid, correlate: ({ order }) => order, within: '1d' })

  test('is found by its aggregate; an early one is kept and does not wake what sleeps', async () => {
    const { id, reply, client } = await begun(paid(), { id: 'A' })
    const before = await world.load(id)
    await reply(Paid({ order: 'A', amount: 3 }))
    // One write: no runner has looked at it, and its time is what it was.
    const { wakeAt, version } = before
    expect(await world.load(id)).toMatchObject({
      ...{ status: 'running', currentStep: 'grace', wakeAt, version: version + 1 },
    })
    await world.clock.advance(61_000)
    expect(await client.result(id)).toEqual({ grace: undefined, payment: { order: 'A', amount: 3 } })
    expect(sent).toEqual([])
  })

  test('of many sagas of its aggregate it is for those that are alive, however old', async () => {
    const one = paid()
    const { id, client, runner, reply } = await begun(one, { id: 'A' })
    await runner.stop()
    for (let i = 0; i < 60; i++) {
      const ended = await world.db.withTransaction((tx) => client.start(tx, { id: 'A' }))
      await world.admin(one).end(ended, { by: 'ann', note: 'twice' })
    }
    await reply(Paid({ order: 'A', amount: 3 }))
    expect(await world.steps(id)).toMatchObject({ payment: 'completed' })
  })

  test('of several steps that wait for such messages each gets its own, in order', async () => {
    const one = saga<Order>('rates', { version: 1, aggregate: ({ id }) => id })
      .request('first', { reply: Paid, correlate: ({ order }) => order })
      .request('second', { reply: Paid, correlate: ({ order }) => order })
    const { id, reply, client } = await begun(one)
    await reply(Paid({ order: 'A', amount: 1 }))
    expect(await world.steps(id)).toEqual({ first: 'completed', second: 'pending' })
    await reply(Paid({ order: 'A', amount: 2 }))
    expect((await world.load(id)).steps.map(({ output }) => output)).toEqual([
      { order: 'A', amount: 1 },
      { order: 'A', amount: 2 },
    ])
    const next = await world.db.withTransaction((tx) => client.start(tx, { id: 'A' }))
    await reply(Paid({ order: 'A', amount: 3 }))
    expect(await world.steps(next)).toEqual({ first: 'completed', second: 'pending' })
  })

  test('what it means is said by a step that waits for messages from outside, not by one that has sent a request', async () => {
    const one = saga<Order>('mixed', { version: 1, aggregate: ({ id }) => id })
      .request('charge', { send: (c) => Ship({ order: c.input.id }), reply: Shipped, refused: Paid })
      .request('payment', { reply: Paid, correlate: ({ order }) => order })
    const { id, reply } = await begun(one)
    await reply(Paid({ order: 'A', amount: 3 }))
    expect(await world.steps(id)).toEqual({ charge: 'pending', payment: 'completed' })
  })

  test('a refusal from outside is found in the same way', async () => {
    const Failed = event<{ order: string; why: string }>('bank.failed')
    const one = base().request('payment', { reply: Paid, refused: Failed, correlate: ({ order }) => order })
    const { id, reply } = await begun(one)
    await reply(Failed({ order: 'A', why: 'no money' }))
    expect(await world.steps(id)).toEqual({ reserve: 'compensated', payment: 'failed' })
    await expect(reply(Failed({ order: 'B', why: 'no money' }))).rejects.toMatchObject({ code: 'SAGA_GONE' })
  })

  test('without a saga it is a dead letter with its reason', async () => {
    const { reply } = await begun(paid(), { id: 'A' })
    await expect(reply(Paid({ order: 'B', amount: 3 }))).rejects.toMatchObject({
      code: 'SAGA_GONE',
      message: expect.stringContaining('no saga waits'),
    })
  })
})

describe('an asynchronous start', () => {
  class Cart extends EventCollector {
    readonly id = 'A'
  }
  const Placed = event<{ order: string }>('order.placed')
  const one = () =>
    saga<Order>('first', { version: 1 }).request('ship', { send: (c) => Ship({ order: c.input.id }), reply: Shipped })

  test('business row, saga, first request and the events of the entity are one transaction, and it returns pending', async () => {
    const rows: string[] = []
    const client = world.runner([one()]).client(one())
    const cart = new Cart()
    cart.record(Placed({ order: 'A' }))
    const id = await world.db.withTransaction(async (tx) => {
      rows.push(cart.id)
      const id = await client.start(tx, { id: cart.id })
      await saveEvents(world.db, world.db.outbox, cart)
      expect(cart.recorded).toHaveLength(1)
      expect(sent).toEqual([])
      return id
    })
    expect(sent.map(({ type }) => type)).toEqual(['ship.wanted', 'order.placed'])
    expect(cart.recorded).toEqual([])
    expect((await world.load(id)).status).toBe('running')
  })

  test('after a rollback there is neither, and the entity still has its events', async () => {
    const client = world.runner([one()]).client(one())
    const cart = new Cart()
    cart.record(Placed({ order: 'A' }))
    const failing = world.db.withTransaction(async (tx) => {
      await client.start(tx, { id: cart.id })
      await saveEvents(world.db, world.db.outbox, cart)
      throw new Error('no')
    })
    await expect(failing).rejects.toThrow('no')
    expect(cart.recorded).toHaveLength(1)
    expect(sent).toEqual([])
    expect(await client.find()).toEqual([])
  })
})
