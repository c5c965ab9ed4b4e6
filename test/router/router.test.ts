import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { event, Message, Reject } from '../../src/core/index.ts'
import { correlation, type Middleware, Router, type Wrap } from '../../src/router/index.ts'
import { transactional } from '../../src/store/index.ts'
import { collector, scriptedSource } from '../../src/testing/index.ts'
import { consume, context, Paid, Placed, raw, record, Sent } from './support.ts'

describe('middleware', () => {
  const named =
    (name: string, log: string[]): Wrap =>
    (next) =>
    async (message, context) => {
      log.push(`${name} in`)
      try {
        return await next(message, context)
      } finally {
        log.push(`${name} out`)
      }
    }

  it('the first registered is outermost', async () => {
    const log: string[] = []
    const router = new Router('r').use(named('first', log)).use(named('second', log))
    router.on(Placed, () => void log.push('handler'))
    await router.handle(raw(), context())
    expect(log).toEqual(['first in', 'second in', 'handler', 'second out', 'first out'])
  })

  it('acking is outside all of it: what a middleware commits is committed before the ack', async () => {
    const log: string[] = []
    const source = scriptedSource([[raw()]])
    const transaction: Middleware = {
      name: 'transaction',
      wrap: (next) => async (message, context) => {
        const outputs = await next(message, context)
        for (let i = 0; i < 5; i++) await new Promise((resolve) => setImmediate(resolve))
        log.push(`commit after ${source.settlements.length} acks`)
        return outputs
      },
    }
    const router = new Router('r').use(transaction).on(Placed, () => void log.push('handler'))
    const consumer = router.consume(source)
    await consumer.runOnce()
    await consumer.stop()
    expect(log).toEqual(['handler', 'commit after 0 acks'])
    expect(source.settlements).toHaveLength(1)
  })

  it('a commit that fails means no ack', async () => {
    const router = new Router('r')
      .use((next) => async (message, context) => {
        await next(message, context)
        throw new Error('could not commit')
      })
      .on(Placed, () => {})
    expect((await consume(router, [raw()])).kinds).toEqual(['retry'])
  })

  it('is wrapped once, and adds to the context what handlers see', async () => {
    let wrapped = 0
    const user: Middleware<{ user: string }> = {
      name: 'user',
      wrap: (next) => {
        wrapped++
        return (message, context) => next(message, { ...context, user: 'ada' } as typeof context)
      },
    }
    const seen: string[] = []
    const router = new Router('r').use(user)
    router.on(Placed, (_, { user }) => void seen.push(user))
    router.on(Paid, (_, { user }) => void seen.push(user))
    await consume(router, [raw(), raw(Paid({ order: '1' })), raw()])
    expect(seen).toEqual(['ada', 'ada', 'ada'])
    expect(wrapped).toBe(1)
  })

  it('gets the message as it came, the handler gets it decoded', async () => {
    const forms: unknown[] = []
    const router = new Router('r')
      .use((next) => (message, context) => {
        forms.push(message.form)
        return next(message, context)
      })
      .on(Placed, ({ data, form }) => void forms.push(form, data))
    await router.handle(raw(Placed({ order: '7' })), context())
    expect(forms).toEqual(['json', 'value', { order: '7' }])
  })

  const gives = (name: string, ...gifts: string[]): Middleware => ({ name, gives: gifts, wrap: (next) => next })
  const needs = (name: string, ...wants: string[]): Middleware => ({ name, needs: wants, wrap: (next) => next })
  const refuses = (name: string, ...these: string[]): Middleware => ({ name, refuses: these, wrap: (next) => next })

  it('in the wrong order is an error at start that says what to do', () => {
    const start = (...middlewares: Middleware[]) => {
      const router = new Router('r')
      for (const middleware of middlewares) router.use(middleware)
      router.freeze()
    }
    expect(() => start(needs('inbox', 'transaction'), gives('tx', 'transaction'))).toThrow(
      'router r: middleware "inbox" needs a transaction; register "tx" before it (the first is outermost)',
    )
    expect(() => start(needs('inbox', 'transaction'))).toThrow('add one that gives a transaction before it')
    expect(() => start(gives('tx', 'transaction'), refuses('repeat', 'transaction'))).toThrow(
      'middleware "repeat" must not stand inside "tx"; register it before "tx"',
    )
    const once = { ...gives('tx', 'transaction'), refuses: ['transaction'] }
    expect(() => start(once, once)).toThrow('router r: middleware "tx" is registered twice; once is enough')
    start(refuses('repeat', 'transaction'), gives('tx', 'transaction'), needs('inbox', 'transaction'))
  })

  it('in the wrong order keeps a consumer from starting: nothing is opened', async () => {
    const router = new Router('r').use(needs('inbox', 'transaction')).on(Placed, () => {})
    await expect(consume(router, [raw()])).rejects.toMatchObject({ code: 'MIDDLEWARE_ORDER' })
    let opened = 0
    const source = { name: 's', features: {}, open: () => Promise.reject(new Error(`${++opened}`)) }
    await expect(router.consume(source).start()).rejects.toMatchObject({ code: 'MIDDLEWARE_ORDER' })
    expect(opened).toBe(0)
  })

  it('that is neither a function nor has a wrap is refused', () => {
    expect(() => new Router('r').use({ name: 'x' } as never)).toThrow('a middleware is a function')
  })

  it.each([
    ['correlation', correlation],
    ['transactional', transactional],
  ])('that was not called is refused at start: %s', (name, middleware) => {
    expect(() => new Router('r').use(middleware as never).freeze()).toThrow(
      `middleware "${name}" returned an object in place of a handler; if it makes a middleware, call it: .use(${name}(…))`,
    )
  })
})

describe('handlers', () => {
  it('are frozen when the router starts', async () => {
    const router = new Router('r').on(Placed, () => {})
    await consume(router, [])
    expect(() => router.on(Paid, () => {})).toThrow('router r: on() after it has started; register everything before')
    expect(() => router.use((next) => next)).toThrow(expect.objectContaining({ code: 'FROZEN' }))
  })

  it('a second one for a type is an error', () => {
    const router = new Router('r').on(Placed, () => {})
    expect(() => router.on(Placed, () => {})).toThrow(expect.objectContaining({ code: 'DUPLICATE_HANDLER' }))
    expect(() => router.on(Paid, undefined as never)).toThrow('the handler for "order.paid" is not a function')
    expect(router.types).toEqual(['order.placed'])
  })

  it('are found by exact type', async () => {
    const seen: string[] = []
    const router = new Router('r')
    router.on(Placed, () => void seen.push('placed'))
    router.on(Paid, () => void seen.push('paid'))
    await consume(router, [raw(Paid({ order: '1' })), raw(Placed({ order: '1' }))])
    expect(seen).toEqual(['paid', 'placed'])
    expect(router.handles(raw(Sent({ order: '1' })))).toBe(false)
  })
})

describe('a message no handler knows', () => {
  const unknown = () => raw(Sent({ order: '1' }))

  it('passes with a warning by default: the producer may be ahead', async () => {
    const telemetry = record()
    let entered = 0
    const router = new Router('r')
      .use((next) => (message, context) => {
        entered++
        return next(message, context)
      })
      .on(Placed, () => {})
    expect((await consume(router, [unknown()])).kinds).toEqual(['done'])
    expect(telemetry.of('router.unknown_type')).toMatchObject([{ type: 'invoice.sent', policy: 'ack-and-warn' }])
    expect(entered).toBe(0)
  })

  it('is handed back with nack, and put aside with dead-letter', async () => {
    const nack = await consume(new Router('r', { unknown: 'nack' }), [unknown()])
    expect(nack.settlements).toMatchObject([{ kind: 'retry', error: { code: 'NO_HANDLER' } }])
    const dead = await consume(new Router('r', { unknown: 'dead-letter' }), [unknown()])
    expect(dead.settlements).toMatchObject([
      { kind: 'dead', reason: expect.stringContaining('no handler for "invoice.sent"') },
    ])
  })
})

describe('versions', () => {
  const v1 = event('user.named', z.object({ name: z.string() }))
  const Named = v1.version(2, z.object({ first: z.string(), last: z.string() }), ({ name }) => {
    const [first = '', last = ''] = name.split(' ')
    return { first, last }
  })

  it('a handler of the event gets every version as the newest', async () => {
    const seen: unknown[] = []
    const router = new Router('r').on(Named, ({ data, version }) => void seen.push([version, data.first, data.last]))
    const old = raw(Named.v(1)({ name: 'Ada Lovelace' }))
    const now = raw(Named({ first: 'Alan', last: 'Turing' }))
    expect((await consume(router, [old, now])).kinds).toEqual(['done', 'done'])
    expect(seen).toEqual([
      [2, 'Ada', 'Lovelace'],
      [2, 'Alan', 'Turing'],
    ])
  })

  it('a handler per version gets its own; one between goes to the nearest newer', async () => {
    const seen: unknown[] = []
    const router = new Router('r')
    router.on(Named.v(1), ({ data }) => void seen.push([1, data.name]))
    router.on(Named.v(2), ({ data }) => void seen.push([2, data.first]))
    await consume(router, [raw(Named.v(1)({ name: 'Ada L' })), raw(Named({ first: 'Alan', last: 'T' }))])
    expect(seen).toEqual([
      [1, 'Ada L'],
      [2, 'Alan'],
    ])
    expect(() => router.on(Named.v(2), () => {})).toThrow()
  })

  it('an unknown newer version is tried with the newest schema and told', async () => {
    const telemetry = record()
    const seen: unknown[] = []
    const router = new Router('r').on(Named, ({ data }) => void seen.push(data.first))
    const newer = raw(Named({ first: 'Ada', last: 'L' })).with({ extensions: { eventversion: 9 } })
    expect((await consume(router, [newer])).kinds).toEqual(['done'])
    expect(seen).toEqual(['Ada'])
    expect(telemetry.of('router.newer_version')).toMatchObject([{ version: 9, newestKnown: 2 }])
  })

  it('an invalid payload is permanent, whatever attempts are left', async () => {
    const router = new Router('r').on(Named, () => {})
    const bad = new Message({ ...raw(Named({ first: 'A', last: 'B' })).attributes(), id: 'bad' }, '{"first":1}')
    const broken = new Message({ ...bad.attributes(), id: 'broken' }, '{')
    const { settlements } = await consume(router, [bad, broken])
    expect(settlements).toMatchObject([
      { kind: 'dead', error: { code: 'INVALID_PAYLOAD' } },
      { kind: 'dead', error: { code: 'INVALID_PAYLOAD' } },
    ])
  })
})

describe('bad input to a router', () => {
  it('is one clear error each, before anything moves', () => {
    expect(() => new Router('')).toThrow('a router needs a name')
    expect(() => new Router('r', { unkown: 'nack' } as never)).toThrow('did you mean "unknown"?')
    expect(() => new Router('r', { unknown: 'dead-leter' as never })).toThrow('did you mean "dead-letter"?')
    const router = new Router('r')
    expect(() => router.on('order.placed' as never, () => {})).toThrow(
      `router r: on: "order.placed" is not the definition of an event; give a definition: event('order.placed')`,
    )
    expect(() => router.on(undefined as never, () => {})).toThrow('on: undefined is not the definition of an event')
    expect(() => router.on(Placed({ order: '1' }) as never, () => {})).toThrow('on: an object is not the definition')
    expect(() => router.on(Placed, undefined as never)).toThrow('the handler for "order.placed" is not a function')
    const source = { name: 's', features: {}, open: () => Promise.reject(new Error()) }
    const refused: [object, string][] = [
      [{ concurency: 2 }, 'did you mean "concurrency"?'],
      [{ concurrency: 0 }, 'whole number of at least 1'],
      [{ concurrency: 1.5 }, 'whole number of at least 1'],
      [{ ack: 'manuel' }, 'did you mean "manual"?'],
      [{ grace: -1 }, 'is not a duration'],
      [{ poll: '-1s' }, 'is not a duration'],
      [{ maxpoll: 1 }, 'did you mean "maxPoll"?'],
      [{ buffer: { cont: 1 } }, 'did you mean "count"?'],
      [{ buffer: { bytes: 0 } }, 'whole number of at least 1'],
      [{ retry: { atempts: 1 } }, 'did you mean "attempts"?'],
      [{ retry: { backoff: { mn: 1 } } }, 'did you mean "min"?'],
      [{ outage: { max: -5 } }, 'is not a duration'],
      [{ retry: { deadKey: 'skip' } }, 'Allowed: block, continue'],
      [{ to: {} }, 'a publisher is an object with publish()'],
    ]
    for (const [options, text] of refused) expect(() => router.consume(source, options), text).toThrow(text)
    expect(() => router.consume({} as never)).toThrow('is not a source; it needs open()')
    expect(() => router.consume({ source: () => source } as never)).toThrow(
      'flow r: from: an object is not a source; it needs open(). It makes sources: give one, such as broker.source(…)',
    )
  })

  it('a handler that returns no message is told so, and nothing is sent', async () => {
    const out = collector()
    const router = new Router('r').on(Placed, () => [Sent({ order: '1' }), { rows: 1 }] as never)
    const { settlements } = await consume(router, [raw()], { to: out })
    expect(settlements).toMatchObject([{ error: { code: 'INVALID_OUTPUT' } }])
    expect(out.calls).toEqual([])
  })

  it('an output that cannot be encoded is told so, and nothing is sent', async () => {
    const out = collector()
    const Big = event<{ n: bigint }>('big')
    const router = new Router('r').on(Placed, () => [Sent({ order: '1' }), Big({ n: 1n })])
    const { settlements } = await consume(router, [raw()], { to: out })
    expect(settlements).toMatchObject([{ error: { code: 'NOT_SERIALISABLE' } }])
    expect(out.calls).toEqual([])
  })

  it('a handler that throws something odd harms nobody else', async () => {
    const throws = [undefined, null, 'text', 42, { code: 5 }, Symbol('s'), new Reject('no')]
    const router = new Router('r').on(Placed, ({ data }) => {
      throw throws[Number(data.order)]
    })
    const { kinds } = await consume(
      router,
      throws.map((_, i) => raw(Placed({ order: String(i) }))),
    )
    expect(kinds).toEqual([...throws.slice(1).map(() => 'retry'), 'dead'])
  })
})
