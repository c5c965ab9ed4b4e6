import { describe, expect, it } from 'vitest'
import { Message, patternOf, type RawMessage } from '../../src/core/index.ts'
import { Engine, Router } from '../../src/router/index.ts'
import { collector, FakeClock, recordTelemetry, scriptedSource } from '../../src/testing/index.ts'
import { Paid, Placed, raw, redelivering, Sent, started } from './support.ts'

const source = (...messages: RawMessage[]) => scriptedSource([messages], redelivering)

describe('engine', () => {
  it('carries a message from a named input through its handler to the first output that matches', async () => {
    const router = new Router('shop', { unknown: 'nack' }).on(Placed, ({ data }) => [
      Sent({ order: data.order }),
      Paid({ order: data.order }),
    ])
    const [orders, invoices, rest] = [collector(), collector(), collector()]
    const from = source(raw(Placed({ order: '7' })))
    const engine = new Engine('shop', { router })
    await engine.input('in', from)
    engine.output('orders', orders, { match: 'order.*' })
    engine.output('invoices', invoices, { match: ({ type }) => type.startsWith('invoice') })
    engine.output('rest', rest)
    expect(await engine.runOnce()).toBe(1)
    await engine.stop()
    expect(orders.messages.map(({ type }) => type)).toEqual(['order.paid'])
    expect(invoices.messages.map(({ data }) => data)).toEqual(['{"order":"7"}'])
    expect(rest.messages).toEqual([])
    expect(from.settlements.map(({ settlement }) => settlement.kind)).toEqual(['done'])
  })

  it('passes through without decoding: the bytes are the same', async () => {
    const out = collector()
    const bytes = new Uint8Array([123, 255, 0, 1])
    const broken = new Message({ id: 'a', source: '/x', type: 'not.known' }, '{ broken   json')
    const binary = new Message({ id: 'b', source: '/x', type: 'image', datacontenttype: 'image/png' }, bytes)
    const from = source(broken, binary)
    const engine = new Engine('forwarder')
    await engine.input('outbox', from, { passThrough: true })
    engine.output('broker', out)
    await engine.runOnce()
    await engine.stop()
    expect(out.messages[0]!.data).toBe('{ broken   json')
    expect(out.messages[1]!.data).toBe(bytes)
    expect(out.messages.map((message) => message.attributes())).toEqual([broken.attributes(), binary.attributes()])
    expect(from.settlements.map(({ settlement }) => settlement.kind)).toEqual(['done', 'done'])
  })

  it('nacks what it does not know, what an input does not take and what no output takes', async () => {
    const from = source(raw(Paid({ order: '1' })), raw(Placed({ order: '2' })), raw(Sent({ order: '3' })))
    const router = new Router('e', { unknown: 'nack' }).on(Placed, () => Sent({ order: '1' }))
    const engine = new Engine('e', { router })
    await engine.input('in', from, { match: 'order.#' })
    engine.output('out', collector(), { match: 'order.paid' })
    await engine.runOnce()
    await engine.stop()
    const errors = from.settlements.map(
      ({ settlement }) => 'error' in settlement && (settlement.error as Error).message,
    )
    expect(errors).toEqual([
      'router e has no handler for "order.paid" [NO_HANDLER]',
      'engine e: input in does not take "invoice.sent" [NO_HANDLER]',
      'engine e: no output takes "invoice.sent"; add one whose match covers it [NO_OUTPUT]',
    ])
  })

  it('takes inputs and outputs while it runs', async () => {
    const [first, second] = [source(raw(Placed({ order: '1' }))), source(raw(Placed({ order: '2' })))]
    const [out, more] = [collector(), collector()]
    const engine = new Engine('e')
    await engine.input('one', first, { passThrough: true })
    engine.output('out', out, { match: 'order.placed' })
    await started(engine)
    await first.settled(1)
    await engine.input('two', second, { passThrough: true })
    await second.settled(1)
    engine.output('more', more)
    second.push(raw(Sent({ order: '3' })))
    await second.settled(2)
    expect(out.messages).toHaveLength(2)
    expect(more.messages.map(({ type }) => type)).toEqual(['invoice.sent'])
    await engine.stop()
    expect([first.closed, second.closed]).toEqual([1, 1])
  })

  it('refuses a second input or output of a name, unknown options, and inputs while it stops', async () => {
    const engine = new Engine('e').output('x', collector())
    await engine.input('x', source())
    await expect(engine.input('x', source())).rejects.toThrow('engine e: input x exists already')
    expect(() => engine.output('x', collector())).toThrow('engine e: output x exists already')
    await expect(engine.input('y', source(), { matches: 'a' } as never)).rejects.toThrow('did you mean "match"?')
    await expect(engine.input('y', source(), { concurrency: 0 })).rejects.toThrow('at least 1')
    expect(() => engine.output('y', collector(), { mtch: 'a' } as never)).toThrow('did you mean "match"?')
    expect(() => engine.output('y', collector(), { match: '' })).toThrow('is no pattern')
    expect(() => new Engine('e', { routr: 1 } as never)).toThrow('did you mean "router"?')
    await started(engine)
    const stopping = engine.stop()
    await expect(engine.input('late', source())).rejects.toThrow('e is stopping, and takes no e.late')
    await stopping
    await engine.input('later', source())
  })

  it('sends nothing when one of several outputs cannot be encoded', async () => {
    const out = [collector(), collector()]
    const bad = Paid({ order: 1n as never })
    const router = new Router('e').on(Placed, () => [Sent({ order: '1' }), bad])
    const from = source(raw())
    const engine = new Engine('e', { router })
    await engine.input('in', from)
    engine.output('a', out[0]!, { match: 'invoice.sent' }).output('b', out[1]!)
    await engine.runOnce()
    await engine.stop()
    expect(from.settlements[0]!.settlement).toMatchObject({ error: { code: 'NOT_SERIALISABLE' } })
    expect(out.flatMap(({ calls }) => calls)).toEqual([])
  })

  it('starts an input again that could not go on, says why, and the other inputs go on', async () => {
    const clock = new FakeClock()
    let opened = 0
    const broken = {
      name: 'queue',
      features: {},
      open: async () => {
        if (opened++ === 0) throw new Error('not yet')
        return undefined
      },
    }
    // A user's random that throws ends the flow that asked it: nothing else reaches the outside of a flow.
    const random = {
      next: () => {
        throw new Error('no luck')
      },
      fill: () => {},
    }
    const telemetry = recordTelemetry(['worker.restarting'])
    const engine = new Engine('e', { clock })
    await engine.input('broken', broken, { random, clock })
    await engine.input('other', source(), { clock })
    await engine.start()
    const restarting = await telemetry.next('worker.restarting')
    expect(restarting).toMatchObject({ worker: 'e.broken', parent: 'e', error: { message: 'no luck' } })
    expect(engine.status()).toMatchObject({ state: 'failing', reason: 'e.broken: Error: no luck' })
    expect(engine.status().children!.find(({ name }) => name === 'e.other')).toMatchObject({ state: 'running' })
    await clock.advance(restarting.retryIn)
    expect(opened).toBe(2)
    await engine.stop()
    telemetry.stop()
  })

  it('stops at once after start, and what is added in between is stopped too', async () => {
    const from = source(raw())
    const engine = new Engine('e').output('out', collector())
    await engine.input('in', from, { passThrough: true })
    const starting = engine.start()
    await engine.stop()
    await starting
    expect(engine.started).toBe(false)
    expect(from.opened).toBe(from.closed)
  })
})

describe('patterns', () => {
  it('a star is one part, a hash any number at the end', () => {
    const cases: [string, string, boolean][] = [
      ['order.*', 'order.placed', true],
      ['order.*', 'order.placed.late', false],
      ['order.*', 'order', false],
      ['order.#', 'order', true],
      ['order.#', 'order.placed.late', true],
      ['order.#', 'orders', false],
      ['*.placed', 'order.placed', true],
      ['*', 'order', true],
      ['*', 'order.placed', false],
      ['a+b.*', 'a+b.c', true],
      ['a+b.*', 'aab.c', false],
    ]
    for (const [pattern, name, expected] of cases) {
      expect(patternOf('test', pattern)(name), `${pattern} ${name}`).toBe(expected)
    }
  })
})
