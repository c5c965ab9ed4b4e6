import { afterEach, beforeEach, describe, expect, expectTypeOf, test, vi } from 'vitest'
import { z } from 'zod'
import { fromStructured, toStructured } from '../../src/cloudevents/index.ts'
import {
  classify,
  type EventData,
  type EventKey,
  encodeData,
  event,
  isUuid,
  Message,
  type StandardSchema,
  WaybillError,
} from '../../src/core/index.ts'
import { thrown } from './thrown.ts'

const V1 = z.object({ orderId: z.string(), total: z.number() })
const V2 = V1.extend({ currency: z.string().length(3) })
const V3 = V2.omit({ total: true }).extend({ cents: z.number().int() })

const First = event('order.placed', V1)
const Second = First.version(2, V2, (v1) => ({ ...v1, currency: 'EUR' }))
const Third = Second.version(3, V3, ({ total, ...rest }) => ({ ...rest, cents: total * 100 }))

const wire = (message: Message) => fromStructured(toStructured(message))

/** A Standard Schema by hand. */
function schema<T>(validate: StandardSchema<T>['~standard']['validate']): StandardSchema<T> {
  return { '~standard': { version: 1, vendor: 'test', validate } }
}

describe('making a message', () => {
  beforeEach(() => void vi.useFakeTimers({ now: new Date('2026-01-02T03:04:05.678Z') }))
  afterEach(() => void vi.useRealTimers())

  test('fills in what it is not given', () => {
    const message = First({ orderId: 'o-1', total: 5 })
    expect(message).toBeInstanceOf(Message)
    expect(message.attributes()).toEqual({
      id: message.id,
      source: '/order',
      type: 'order.placed',
      subject: undefined,
      time: '2026-01-02T03:04:05.678Z',
      datacontenttype: undefined,
      dataschema: undefined,
      extensions: { eventversion: 1 },
    })
    expect(isUuid(message.id)).toBe(true)
    expect(message.id).not.toBe(First({ orderId: 'o-1', total: 5 }).id)
    expect(message.data).toEqual({ orderId: 'o-1', total: 5 })
    vi.setSystemTime(new Date('2026-01-02T03:04:05.679Z'))
    expect(First({ orderId: 'o-1', total: 5 }).time).toBe('2026-01-02T03:04:05.679Z')
  })

  test('takes what it is given', () => {
    const time = new Date(0)
    const extensions = { traceparent: '00-a-b-01', eventversion: 7 }
    const options = { id: 'x', source: '/shop', subject: 'o-1', time, key: 'o-1', tenant: 't', extensions }
    const message = Second({ orderId: 'o-1', total: 5, currency: 'USD' }, options)
    expect(message.attributes()).toMatchObject({
      id: 'x',
      source: '/shop',
      subject: 'o-1',
      time: '1970-01-01T00:00:00.000Z',
      extensions: { eventversion: 2, partitionkey: 'o-1', tenantid: 't', traceparent: '00-a-b-01' },
    })
    expect([message.key, message.tenant, message.version]).toEqual(['o-1', 't', 2])
    expect(First({ orderId: 'o-1', total: 5 }, { time: '2026-01-01T00:00:00Z' }).time).toBe('2026-01-01T00:00:00Z')
  })

  test('the definition may say the source and the data schema', () => {
    const Shipped = event('parcel', V1, { source: 'urn:shop', dataschema: 'urn:schema:parcel' })
    const message = Shipped({ orderId: 'o-1', total: 5 })
    expect([message.source, message.dataschema]).toEqual(['urn:shop', 'urn:schema:parcel'])
    expect(event('parcel')({}).source).toBe('/parcel')
    expect(Shipped.version(2, V2).v(2)({ orderId: '', total: 1, currency: 'EUR' }).source).toBe('urn:shop')
  })

  test('invalid data is refused at once, by path and without its value', () => {
    const Order = event(
      'order.placed',
      z.object({ card: z.string().max(3), items: z.array(z.object({ n: z.number() })) }),
    )
    const error = thrown(() => Order({ card: '4111', items: [{ n: 1 }, { n: 'secret' as never }] }, { id: 'm-1' }))
    expect(error.code).toBe('INVALID_PAYLOAD')
    expect(error.message).toMatch(/^order\.placed m-1: the data is not of version 1: card: .+; items\.1\.n: .+/)
    expect(error.message).not.toMatch(/4111|secret/)
    expect(classify(error)).toBe('permanent')
  })

  test('values that a schema repeats are cut out of its message', () => {
    const issues = [
      { message: 'Expected number but received "secret"', path: ['a'] },
      { message: 'a must be a number (was "secret" (really))', path: [{ key: 'a' }] },
      { message: 'must be below 5, got 7', path: ['n'] },
      { message: 'customer jane@example.org owes 4111.5', path: [] },
      { message: 'circle', path: ['circle'] },
      { message: 'gone', path: ['gone', 'further'] },
    ]
    const data: Record<string, unknown> = { a: 'secret', n: 7, of: { mail: 'jane@example.org', sum: 4111.5 } }
    data['circle'] = data
    const error = thrown(() =>
      event(
        'x',
        schema(() => ({ issues })),
      )(data),
    )
    expect(error.message).toMatch(
      /received …; a: a must be a number; n: must be below 5, got …; customer … owes …; circle: circle; gone.further: gone \[INVALID_PAYLOAD\]$/,
    )
  })

  test('a long list of issues is cut', () => {
    const issues = Array.from({ length: 50 }, (_, at) => ({ message: 'wrong', path: [at] }))
    expect(
      thrown(() =>
        event(
          'x',
          schema(() => ({ issues })),
        )([]),
      ).message,
    ).toMatch(/9: wrong; and 40 more \[INVALID_PAYLOAD\]$/)
  })

  test.each<[string, object, string]>([
    ['an unknown option', { tennant: 't' }, 'order.placed: unknown option "tennant"; did you mean "tenant"?'],
    ['an empty id', { id: '' }, 'message attribute "id"'],
    ['a bad time', { time: 'noon' }, 'message attribute "time"'],
    ['an invalid date', { time: new Date(Number.NaN) }, 'message attribute "time"'],
    ['a bad extension', { extensions: { 'trace-id': 'x' } }, 'message attribute "trace-id"'],
    ['a key that is an object', { key: {} }, 'message attribute "partitionkey"'],
  ])('%s is refused', (_, options, text) => {
    expect(thrown(() => First({ orderId: 'o-1', total: 5 }, options)).message).toContain(text)
  })

  test('the message carries what the schema gives', () => {
    const Trimmed = event('x', z.object({ name: z.string().trim(), tags: z.array(z.string()).default([]) }))
    const message = Trimmed({ name: ' a ', secret: 1 } as { name: string })
    expect(message.data).toEqual({ name: 'a', tags: [] })
    expect(wire(message).data).toBe('{"name":"a","tags":[]}')
  })

  test('an asynchronous schema needs create', async () => {
    const Known = event('customer.known', z.object({ id: z.string().refine(async (id) => id !== 'nobody') }))
    const error = thrown(() => Known({ id: 'nobody' }))
    expect(error.code).toBe('ASYNC_SCHEMA')
    expect(error.message).toContain('use await create(…)')
    expect((await Known.create({ id: 'jane' }, { key: 'jane' })).key).toBe('jane')
    await expect(Known.create({ id: 'nobody' })).rejects.toMatchObject({ code: 'INVALID_PAYLOAD' })
    expect((await First.create({ orderId: 'o-1', total: 1 })).data.total).toBe(1)
  })

  test('without a schema, anything passes', () => {
    const Plain = event<{ a: number }>('plain')
    const data = { a: 1 }
    expect(Plain(data).data).toBe(data)
  })
})

describe('a definition', () => {
  test('says its type and newest version', () => {
    expect([Third.type, Third.newest, Third.target, Third.exact]).toEqual(['order.placed', 3, 3, false])
    expect([Third.v(2).type, Third.v(2).target, Third.v(2).exact]).toEqual(['order.placed', 2, true])
  })

  test('does not change: a version makes another', () => {
    expect([First.newest, Second.newest]).toEqual([1, 2])
    expect(First({ orderId: 'o-1', total: 5 }).version).toBe(1)
  })

  test('makes messages of an older version too', () => {
    const old = Third.v(1)({ orderId: 'o-1', total: 5 })
    expect([old.version, old.data]).toEqual([1, { orderId: 'o-1', total: 5 }])
    expect(() => Third.v(1)({ orderId: 'o-1' } as never)).toThrow('is not of version 1: total:')
  })

  test('recognises its messages by type', () => {
    expect(First.is(Third({ orderId: 'o-1', currency: 'EUR', cents: 1 }))).toBe(true)
    expect(First.is(event('order.paid')({}))).toBe(false)
  })

  test.each([
    ['', '""'],
    ['order placed', '"order placed"'],
    ['order\nplaced', '"order\\nplaced"'],
    ['order\u0000', '"order\\u0000"'],
    ['x'.repeat(256), '"xxx'],
    [5, '5'],
    [undefined, 'undefined'],
  ])('the name %j is refused', (name, shown) => {
    const error = thrown(() => event(name as string))
    expect(error.code).toBe('INVALID_OPTION')
    expect(error.message).toContain(`event ${shown}`)
  })

  test('the longest name passes', () => {
    expect(event('x'.repeat(255)).type).toHaveLength(255)
  })

  test.each<[string, () => unknown, string]>([
    ['a schema that is none', () => event('x', {} as never), 'the schema of version 1 is an object'],
    ['an unknown option', () => event('x', V1, { sorce: '/' } as never), 'did you mean "source"?'],
    ['an empty source', () => event('x', V1, { source: '' }), 'message attribute "source"'],
    ['a version that is not newer', () => Second.version(2, V2), 'version 2 must be a whole number greater than 2'],
    ['a version that is not whole', () => First.version(1.5, V2), 'version 1.5 must be a whole number'],
    ['an upcaster that is none', () => First.version(2, V2, 'x' as never), 'upcaster of version 2 must be a function'],
    ['a version nobody defined', () => First.v(9 as 1), 'version 9 is not defined. Known: 1'],
  ])('%s is refused', (_, act, text) => {
    expect(thrown(act).message).toContain(text)
  })
})

describe('decoding', () => {
  const old = Third.v(1)({ orderId: 'o-1', total: 5 }, { id: 'm-1' })

  test('a raw message of the same version is parsed and validated', () => {
    const message = First.decode(wire(old)) as Message<{ total: number }>
    expect(message.data).toEqual({ orderId: 'o-1', total: 5 })
    expect([message.id, message.version, message.form]).toEqual(['m-1', 1, 'value'])
  })

  test('older versions are raised step by step to the newest', () => {
    const message = Third.decode(wire(old)) as Message
    expect(message.data).toEqual({ orderId: 'o-1', currency: 'EUR', cents: 500 })
    expect(message.version).toBe(3)
    const second = Third.decode(wire(Third.v(2)({ orderId: 'o-1', total: 5, currency: 'USD' }))) as Message
    expect(second.data).toEqual({ orderId: 'o-1', currency: 'USD', cents: 500 })
  })

  test('a view of a version raises to that one, and never lowers', () => {
    expect((Third.v(2).decode(wire(old)) as Message).data).toEqual({ orderId: 'o-1', total: 5, currency: 'EUR' })
    const newer = wire(Third({ orderId: 'o-1', currency: 'EUR', cents: 1 }))
    const error = thrown(() => Third.v(2).decode(newer))
    expect(error.code).toBe('NO_VERSION')
    expect(error.message).toContain('no upcasters lead from version 3 to version 2. Known: 1, 2, 3')
    expect(classify(error)).toBe('permanent')
  })

  test('without an upcaster there is no way', () => {
    const Gap = First.version(2, V2).version(4, V3, () => ({ orderId: 'x', currency: 'EUR', cents: 1 }))
    expect(thrown(() => Gap.decode(wire(old))).code).toBe('NO_VERSION')
    const skipped = new Message({ ...old.attributes(), extensions: { eventversion: 3 } }, '{}')
    expect(thrown(() => Gap.decode(skipped)).code).toBe('NO_VERSION')
  })

  test('what says no version is of version 1', () => {
    const foreign = new Message({ id: '1', source: '/', type: 'order.placed' }, '{"orderId":"o-1","total":5}')
    expect((Second.decode(foreign) as Message).data).toEqual({ orderId: 'o-1', total: 5, currency: 'EUR' })
  })

  test('an unknown newer version is tried with the newest known schema, and told', () => {
    const told: unknown[] = []
    const newer = wire(Third({ orderId: 'o-1', currency: 'EUR', cents: 1 }).with({ extensions: { eventversion: 9 } }))
    const message = Third.decode(newer, (given, newestKnown) => told.push([given, newestKnown])) as Message
    expect(message.data).toEqual({ orderId: 'o-1', currency: 'EUR', cents: 1 })
    expect(message.version).toBe(3)
    expect(told).toEqual([[newer, 3]])
    expect((Third.decode(newer) as Message).version).toBe(3)
    expect(thrown(() => Second.decode(newer)).code).toBe('INVALID_PAYLOAD')
    Third.decode(wire(old), () => told.push('not newer'))
    expect(told).toHaveLength(1)
  })

  test('invalid data is permanent', () => {
    for (const data of ['{"orderId":4111}', '{', '', 'null', '"4111"']) {
      const error = thrown(() => First.decode(new Message(old.attributes(), data)))
      expect(error.code).toBe('INVALID_PAYLOAD')
      expect(error.message).not.toContain('4111')
      expect(classify(error)).toBe('permanent')
    }
  })

  test('an upcaster that gives wrong data is told by the schema it should fit', () => {
    const Wrong = First.version(2, V2, (v1) => ({ ...v1, currency: 'euros' }))
    const error = thrown(() => Wrong.decode(wire(old)))
    expect(error.message).toContain('is not of version 2: currency:')
  })

  test('an upcaster or a schema that throws is not the data being wrong: the cause decides', () => {
    const refused = Object.assign(new Error('away'), { code: 'ECONNREFUSED' })
    const Upcast = First.version(2, V2, () => {
      throw refused
    })
    const Throwing = event(
      'order.placed',
      schema(() => {
        throw refused
      }),
    )
    const errors = [thrown(() => Upcast.decode(wire(old))), thrown(() => Throwing.decode(wire(old)))]
    expect(errors.map(({ code }) => code)).toEqual(['UPCAST_FAILED', 'SCHEMA_FAILED'])
    for (const error of errors) {
      expect(error.cause).toBe(refused)
      expect(classify(error)).toBe('down')
    }
  })

  test('asynchronous schemas and upcasters give a promise; others do not', async () => {
    expect(Third.decode(wire(old))).toBeInstanceOf(Message)
    const Async = First.version(
      2,
      V2.refine(async () => true),
      async (v1) => ({ ...v1, currency: 'EUR' }),
    )
    const pending = Async.decode(wire(old))
    expect(pending).toBeInstanceOf(Promise)
    expect((await pending).data).toEqual({ orderId: 'o-1', total: 5, currency: 'EUR' })
    const failing = schema(() => Promise.reject(new Error('away')))
    await expect(event('order.placed', failing).decode(wire(old))).rejects.toMatchObject({ code: 'SCHEMA_FAILED' })
    const upcast = First.version(2, V2, () => Promise.reject(new Error('away')))
    await expect(upcast.decode(wire(old))).rejects.toMatchObject({ code: 'UPCAST_FAILED' })
  })

  test('what it made or decoded itself is not validated again', () => {
    let validated = 0
    const Counted = event(
      'counted',
      schema<string>((value) => {
        validated++
        return { value: value as string }
      }),
    )
    const made = Counted('x')
    expect(Counted.decode(made)).toBe(made)
    expect(Counted.v(1).decode(made.with({ subject: 's' }))).toBeInstanceOf(Message)
    const decoded = Counted.decode(wire(made)) as Message
    expect(Counted.decode(decoded)).toBe(decoded)
    expect(validated).toBe(2)
    Counted.decode(made.withData('y'))
    Counted.decode(made.with({ extensions: { eventversion: 1 } }))
    event(
      'counted',
      schema(() => ({ issues: [] })),
    ).is(made)
    expect(validated).toBe(4)
  })

  test('a message of values is validated as it is', () => {
    const message = new Message(old.attributes(), { orderId: 'o-1', total: 5 })
    expect((Third.decode(message) as Message).data).toEqual({ orderId: 'o-1', currency: 'EUR', cents: 500 })
    expect(thrown(() => Third.decode(message.withData({}))).code).toBe('INVALID_PAYLOAD')
  })

  test('a message of another type is refused', () => {
    expect(thrown(() => First.decode(event('order.paid')({}))).code).toBe('WRONG_TYPE')
  })

  test('a string is a string at both ends', () => {
    const Greeted = event('person.greeted', z.string())
    for (const text of ['hello', '{"a":1}', '', '"']) {
      const sent = Greeted(text)
      const received = Greeted.decode(wire(sent)) as Message<string>
      expect(received.data).toBe(text)
      expect(encodeData(received).data).toBe(JSON.stringify(text))
      expect((Greeted.decode(wire(received)) as Message<string>).data).toBe(text)
    }
  })
})

test('types', () => {
  const on = <Data>(_key: EventKey<Data>, handler: (message: Message<Data>) => void) => handler
  expectTypeOf(First).parameter(0).toEqualTypeOf<{ orderId: string; total: number }>()
  expectTypeOf(Third({ orderId: 'o-1', currency: 'EUR', cents: 1 })).toEqualTypeOf<
    Message<{ orderId: string; currency: string; cents: number }>
  >()
  expectTypeOf<EventData<typeof Third>>().toEqualTypeOf<{ orderId: string; currency: string; cents: number }>()
  expectTypeOf(Third.newest).toEqualTypeOf<3>()
  expectTypeOf(Third.v(1)).parameter(0).toEqualTypeOf<{ orderId: string; total: number }>()
  on(Second, ({ data }) => expectTypeOf(data).toEqualTypeOf<{ orderId: string; total: number; currency: string }>())
  on(Second.v(1), ({ data }) => expectTypeOf(data).toEqualTypeOf<{ orderId: string; total: number }>())

  // The factory takes what goes into the schema, the message carries what comes out of it.
  const Dated = event(
    'dated',
    z.object({ at: z.string().transform((text) => new Date(text)), n: z.number().default(1) }),
  )
  expectTypeOf(Dated).parameter(0).toEqualTypeOf<{ at: string; n?: number | undefined }>()
  expectTypeOf<EventData<typeof Dated>>().toEqualTypeOf<{ at: Date; n: number }>()

  const Plain = event<{ a: number }>('plain')
  expectTypeOf(Plain({ a: 1 }).data).toEqualTypeOf<{ a: number }>()
  const Raised = Plain.version(2, undefined, ({ a }) => ({ b: String(a) }))
  expectTypeOf<EventData<typeof Raised>>().toEqualTypeOf<{ b: string }>()
  expectTypeOf(event('anything')).parameter(0).toEqualTypeOf<unknown>()

  const message = new Message({ id: '1', source: '/', type: 'x' }, 1) as Message
  if (Second.is(message)) expectTypeOf(message.data.currency).toEqualTypeOf<string>()

  const wrong = () => {
    // @ts-expect-error a number is not an order's id
    First({ orderId: 1, total: 5 })
    // @ts-expect-error a total is missing
    First({ orderId: 'o-1' })
    // @ts-expect-error there is no version 2
    First.v(2)
    // @ts-expect-error the upcaster gives no currency
    First.version(2, V2, (v1) => v1)
    // @ts-expect-error there is no such option
    First({ orderId: 'o-1', total: 5 }, { tennant: 't' })
    // @ts-expect-error a schema is no plain object
    event('x', { orderId: 'string' })
  }
  expect(wrong).toThrow(WaybillError)
})
