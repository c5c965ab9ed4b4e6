import { describe, expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { EventBus } from '../../../src/brokers/in-process/index.ts'
import { classify, encodeData, event, Message, Reject, RetryLater, Unavailable } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { recordTelemetry, scriptedSource } from '../../../src/testing/index.ts'

const { signal } = new AbortController()
const OrderPlaced = event('order.placed', z.object({ total: z.number() }))

async function failure(work: Promise<unknown>): Promise<AggregateError> {
  return await work.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )
}

describe('event bus', () => {
  test('subscribers get what they want: an event, a type, a pattern; and unsubscribe', async () => {
    const bus = new EventBus()
    const seen: string[] = []
    const stop = bus.subscribe(OrderPlaced, (message) => {
      expectTypeOf(message.data).toEqualTypeOf<{ total: number }>()
      seen.push(`event ${message.data.total}`)
    })
    bus.subscribe('order.placed', ({ data }) => seen.push(`type ${JSON.stringify(data)}`))
    bus.subscribe('order.*', ({ type }) => seen.push(`pattern ${type}`))
    bus.subscribe('invoice.#', () => seen.push('invoice'))
    await bus.dispatch(OrderPlaced({ total: 7 }))
    expect(seen.sort()).toEqual(['event 7', 'pattern order.placed', 'type {"total":7}'])
    stop()
    stop()
    seen.length = 0
    await bus.dispatch(encodeData(OrderPlaced({ total: 8 })))
    expect(seen.sort()).toEqual(['pattern order.placed', 'type {"total":8}'])
  })

  test('an event is validated and upcast; one version of it gets only that version', async () => {
    const Priced = event('priced', z.object({ cents: z.number() })).version(
      2,
      z.object({ amount: z.number() }),
      ({ cents }) => ({ amount: cents / 100 }),
    )
    const bus = new EventBus()
    const seen: unknown[] = []
    bus.subscribe(Priced, ({ data }) => seen.push(data))
    bus.subscribe(Priced.v(1), ({ data }) => seen.push(data))
    await bus.dispatch(Priced.v(1)({ cents: 250 }))
    expect(seen).toEqual(expect.arrayContaining([{ amount: 2.5 }, { cents: 250 }]))
    await bus.dispatch(Priced({ amount: 3 }))
    expect(seen.length).toBe(3)
    const bad = new Message({ id: '1', source: '/s', type: 'priced' }, '{"cents":"many"}')
    const { errors } = await failure(bus.dispatch(bad))
    expect(errors.map(({ code }) => code)).toEqual(['INVALID_PAYLOAD', 'INVALID_PAYLOAD'])
  })

  test('dispatch runs every subscriber, and gathers throws and rejections in one error', async () => {
    const bus = new EventBus()
    const ran: string[] = []
    bus.subscribe('a', () => {
      ran.push('throws')
      throw new Error('thrown')
    })
    bus.subscribe('a', async () => {
      await new Promise((resolve) => setImmediate(resolve))
      ran.push('rejects')
      throw new Error('rejected')
    })
    bus.subscribe('a', async () => {
      await new Promise((resolve) => setTimeout(resolve, 10))
      ran.push('succeeds')
    })
    const error = await failure(bus.dispatch(new Message({ id: '1', source: '/s', type: 'a' }, '{}')))
    expect(error).toBeInstanceOf(AggregateError)
    expect(error.errors.map(({ message }) => message)).toEqual(['thrown', 'rejected'])
    expect(error.message).toBe('a 1: 2 of 3 subscribers failed')
    expect(ran).toEqual(['throws', 'rejects', 'succeeds'])
  })

  test('a message that nobody wants is an error', async () => {
    const bus = new EventBus()
    bus.subscribe('b', () => {})
    const message = new Message({ id: '1', source: '/s', type: 'a' }, '{}')
    await expect(bus.dispatch(message)).rejects.toMatchObject({ code: 'NO_SUBSCRIBERS' })
  })

  test('publish returns at once, and tells of subscribers that fail', async () => {
    const recorder = recordTelemetry(['bus.subscriber_failed'])
    const bus = new EventBus()
    let ran = 0
    bus.subscribe('a', () => {
      ran++
      throw new Error('thrown')
    })
    bus.subscribe('a', async () => {
      ran++
      throw new Error('rejected')
    })
    bus.publish(new Message({ id: '1', source: '/s', type: 'a' }, '{}'))
    bus.publish(new Message({ id: '2', source: '/s', type: 'nobody' }, '{}'))
    expect(ran).toBe(0)
    await new Promise((resolve) => setImmediate(resolve))
    expect(ran).toBe(2)
    recorder.stop()
    expect(recorder.of('bus.subscriber_failed').map(({ id, error }) => [id, (error as Error).message])).toEqual([
      ['1', 'thrown'],
      ['1', 'rejected'],
    ])
  })

  test('bad input is refused', () => {
    const bus = new EventBus()
    expect(() => bus.subscribe('', () => {})).toThrow('no pattern')
    expect(() => bus.subscribe('a', undefined as never)).toThrow('a subscriber is a function')
    expect(() => new EventBus({ clasify: classify } as never)).toThrow('did you mean "classify"?')
  })
})

describe('the bus as a publisher', () => {
  const outcomesOf = async (...errors: (Error | undefined)[]) => {
    const bus = new EventBus()
    for (const error of errors) {
      bus.subscribe('a', () => {
        if (error !== undefined) throw error
      })
    }
    const [outcome] = await bus.publisher().publish([new Message({ id: '1', source: '/s', type: 'a' }, '{}')], signal)
    return outcome!
  }

  test('is ok only when every subscriber is', async () => {
    expect(await outcomesOf(undefined, undefined)).toMatchObject({ kind: 'ok' })
    expect(await outcomesOf(undefined, new Error('no'))).toMatchObject({ kind: 'failed' })
    expect(await outcomesOf()).toMatchObject({ kind: 'failed', error: { code: 'NO_SUBSCRIBERS' } })
  })

  test('is rejected only when no subscriber that failed may succeed later', async () => {
    expect(await outcomesOf(new Reject('never'))).toMatchObject({ kind: 'rejected' })
    expect(await outcomesOf(new Reject('never'), undefined)).toMatchObject({ kind: 'rejected' })
    expect(await outcomesOf(new Reject('never'), new Error('not yet'))).toMatchObject({ kind: 'failed' })
    expect(await outcomesOf(new Error('not yet'), new Unavailable('away'))).toMatchObject({ kind: 'down' })
    expect(await outcomesOf(new RetryLater('3s'), new RetryLater('9s'))).toMatchObject({ kind: 'failed', after: 9000 })
  })

  test('the error of a dispatch is classified like the one that decides', async () => {
    const bus = new EventBus()
    bus.subscribe('a', () => Promise.reject(new Reject('never')))
    const error = await failure(bus.dispatch(new Message({ id: '1', source: '/s', type: 'a' }, '{}')))
    expect(classify(error)).toBe('permanent')
  })

  test('a flow relays to it: what nobody handled stays for later', async () => {
    const bus = new EventBus()
    const handled: string[] = []
    bus.subscribe('wanted', ({ id }) => handled.push(id))
    const message = (id: string, type: string) => new Message({ id, source: '/s', type }, '{}')
    const from = scriptedSource([[message('1', 'wanted'), message('2', 'unwanted')]], {
      features: { redelivers: true },
    })
    const to = bus.publisher()
    const flow = new Flow({
      name: 'relay',
      from,
      step: {
        batch: (all, stop) =>
          to.publish(
            all.map((one) => one.message),
            stop,
          ),
        size: 10,
        ordered: false,
      },
    })
    await flow.runOnce()
    await flow.stop()
    expect(handled).toEqual(['1'])
    expect(from.settlementOf('1')!.kind).toBe('done')
    expect(from.settlementOf('2')!.kind).toBe('retry')
  })
})
