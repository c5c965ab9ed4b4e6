import { describe, expect, it } from 'vitest'
import { type Message, Reject } from '../../src/core/index.ts'
import { ackingOf, type Context, deadLetter, Router } from '../../src/router/index.ts'
import { collector, FakeClock, scriptedSource } from '../../src/testing/index.ts'
import { consume, Placed, raw, redelivering, Sent, started } from './support.ts'

const turn = () => new Promise((resolve) => setImmediate(resolve))

describe('ack on success', () => {
  it('acks when the handler returned, nacks when it threw', async () => {
    const router = new Router('r').on(Placed, async ({ data }) => {
      await turn()
      if (data.order === 'bad') throw new Error('no')
    })
    const { kinds } = await consume(router, [raw(), raw(Placed({ order: 'bad' })), raw()])
    expect(kinds).toEqual(['done', 'retry', 'done'])
  })

  it('acks only when what was returned has arrived at its destination', async () => {
    const out = collector()
    const letGo = out.hold()
    const source = scriptedSource([[raw()]], redelivering)
    const router = new Router('r').on(Placed, ({ data }) => Sent({ order: data.order }))
    await started(router.consume(source, { to: out }))
    await turn()
    await turn()
    expect(out.calls).toHaveLength(1)
    expect(source.settlements).toEqual([])
    letGo()
    const [settled] = await source.settled(1)
    expect(settled!.settlement.kind).toBe('done')
    expect(out.messages.map(({ type }) => type)).toEqual(['invoice.sent'])
  })

  it('does not ack when the outputs did not arrive, and says what the destination said', async () => {
    const router = new Router('r').on(Placed, () => [Sent({ order: '1' }), Sent({ order: '2' })])
    const refusing = collector()
    refusing.reject({ where: ({ data }) => String(data).includes('2') })
    expect((await consume(router, [raw()], { to: refusing })).kinds).toEqual(['dead'])
    const failing = collector()
    failing.fail({ after: '7s' })
    const { settlements } = await consume(router, [raw()], { to: failing })
    expect(settlements).toMatchObject([{ kind: 'retry', after: 7000, charged: true }])
    const away = collector()
    away.down()
    expect((await consume(router, [raw()], { to: away })).kinds).toEqual(['release'])
  })

  it('a plain function may take the outputs', async () => {
    const sent: string[] = []
    const router = new Router('r').on(Placed, () => Sent({ order: '1' }))
    const to = async (message: Message) => void sent.push(message.type)
    expect((await consume(router, [raw()], { to })).kinds).toEqual(['done'])
    expect(sent).toEqual(['invoice.sent'])
  })

  it('outputs that nothing takes are an error that says what to do', async () => {
    const router = new Router('r').on(Placed, () => Sent({ order: '1' }))
    const { settlements } = await consume(router, [raw()])
    expect(settlements).toMatchObject([
      { kind: 'retry', error: { code: 'NO_OUTPUT', message: expect.stringContaining('give consume() a `to`') } },
    ])
  })

  it('ack() is refused: it would come before the commit', async () => {
    const router = new Router('r').on(Placed, (_, { ack }) => void ack())
    expect((await consume(router, [raw()])).settlements).toMatchObject([{ error: { code: 'NOT_MANUAL' } }])
  })

  it('outputs of many handlers share a call; those of one key go one after the other, unless the publisher is ordered', async () => {
    for (const ordered of [false, true]) {
      const out = collector({ ordered })
      const router = new Router('r').on(Placed, ({ data }) =>
        ['1', '2'].map((n) => Sent({ order: data.order + n }, { key: data.order })),
      )
      const messages = ['a', 'b', 'c'].map((order) => raw(Placed({ order })))
      const { kinds } = await consume(router, messages, { to: out })
      expect(kinds).toEqual(['done', 'done', 'done'])
      const calls = out.calls.map((call) => call.map(({ data }) => JSON.parse(String(data)).order).join(' '))
      expect(calls).toEqual(ordered ? ['a1 a2 b1 b2 c1 c2'] : ['a1 b1 c1', 'a2 b2 c2'])
    }
  })

  it('what would follow one that did not arrive is not sent', async () => {
    const out = collector()
    out.fail({ where: ({ data }) => String(data).includes('a1') })
    const router = new Router('r').on(Placed, ({ data }) =>
      ['1', '2'].map((n) => Sent({ order: data.order + n }, { key: data.order })),
    )
    const messages = ['a', 'b'].map((order) => raw(Placed({ order })))
    expect((await consume(router, messages, { to: out })).kinds).toEqual(['retry', 'done'])
    expect(out.messages.map(({ data }) => JSON.parse(String(data)).order)).toEqual(['b1', 'b2'])
  })
})

describe('manual ack', () => {
  it('waits for ack or nack, whenever it comes; the first counts', async () => {
    const contexts: Context[] = []
    const router = new Router('r').on(Placed, (_, context) => void contexts.push(context))
    const source = scriptedSource([[raw(), raw(), raw()]], redelivering)
    await started(router.consume(source, { ack: 'manual' }))
    await turn()
    await turn()
    expect(contexts).toHaveLength(3)
    expect(source.settlements).toEqual([])
    expect(contexts[1]!.ack()).toBe(true)
    expect(contexts[1]!.nack(new Error('too late'))).toBe(false)
    expect(contexts[0]!.nack(new Reject('never'))).toBe(true)
    expect(contexts[0]!.ack()).toBe(false)
    await source.settled(2)
    expect(source.settlements.map(({ settlement }) => settlement.kind).sort()).toEqual(['dead', 'done'])
    contexts[2]!.ack()
    await source.settled(3)
  })

  it('an error nacks', async () => {
    const router = new Router('r').on(Placed, async () => {
      throw new Error('no')
    })
    const source = scriptedSource([[raw()]], redelivering)
    await started(router.consume(source, { ack: 'manual', grace: 0 }))
    const [settled] = await source.settled(1)
    expect(settled!.settlement.kind).toBe('retry')
  })

  it('what no handler had to do with is acked: nobody else would', async () => {
    const dead = collector()
    const never = () => {
      throw new Reject('never')
    }
    const skipping = () => async () => undefined
    const routers = [
      new Router('unknown'),
      new Router('rejects').use(deadLetter({ to: dead })).on(Placed, never),
      new Router('skips').use({ name: 'skip', wrap: skipping }).on(Placed, () => {}),
    ]
    for (const router of routers) {
      const source = scriptedSource([[raw()]], redelivering)
      await started(router.consume(source, { ack: 'manual', timeout: '1s' }))
      const [settled] = await source.settled(1)
      expect(settled!.settlement.kind, router.name).toBe('done')
    }
    expect(dead.messages).toHaveLength(1)
  })

  it('what was never acked is released at the end of the grace', async () => {
    const clock = new FakeClock()
    const router = new Router('r').on(Placed, () => {})
    const source = scriptedSource([[raw()]], redelivering)
    const consumer = router.consume(source, { ack: 'manual', clock, grace: '1s' })
    await consumer.start()
    await clock.settle()
    const stopping = consumer.stop()
    await clock.advance(1000)
    await stopping
    expect(source.settlements.map(({ settlement }) => settlement.kind)).toEqual(['release'])
  })
})

describe('forwarded ack', () => {
  it('acks now when there are no outputs', async () => {
    const router = new Router('r').on(Placed, () => [])
    expect((await consume(router, [raw()], { ack: 'forward' })).kinds).toEqual(['done'])
  })

  it('acks when all outputs are acked; they carry the ack on', async () => {
    const carried: (string | undefined)[] = []
    const router = new Router('r').on(Placed, () => [Sent({ order: '1' }), Sent({ order: '2' })])
    const to = async (message: Message) => {
      carried.push(ackingOf(message)?.settled ?? (ackingOf(message) === undefined ? 'none' : undefined))
      await turn()
      ackingOf(message)!.ack()
    }
    expect((await consume(router, [raw()], { ack: 'forward', to })).kinds).toEqual(['done'])
    expect(carried).toEqual([undefined, undefined])
  })

  it('the first nack settles at once, whatever the others do', async () => {
    const out = collector()
    const letGo = out.hold()
    const outputs: Message[] = []
    const router = new Router('r').on(Placed, () => {
      outputs.push(Sent({ order: '1' }), Sent({ order: '2' }))
      return outputs
    })
    const source = scriptedSource([[raw()]], redelivering)
    await started(router.consume(source, { ack: 'forward', to: out }))
    await turn()
    await turn()
    ackingOf(outputs[0]!)!.ack()
    ackingOf(outputs[1]!)!.nack(new Reject('refused downstream'))
    const [settled] = await source.settled(1)
    expect(settled!.settlement).toMatchObject({ kind: 'dead' })
    letGo()
    await turn()
    expect(source.settlements).toHaveLength(1)
  })

  it('nacks when the outputs did not arrive', async () => {
    const out = collector()
    out.fail()
    const router = new Router('r').on(Placed, () => Sent({ order: '1' }))
    expect((await consume(router, [raw()], { ack: 'forward', to: out })).kinds).toEqual(['retry'])
  })
})
