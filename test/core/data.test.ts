import { describe, expect, test } from 'vitest'
import { type Attributes, classify, decodeData, encodeData, isJsonType, Message } from '../../src/core/index.ts'
import { thrown } from './thrown.ts'

const attributes: Attributes = { id: 'm-1', source: '/order', type: 'order.placed' }
const value = (data: unknown, datacontenttype?: string) =>
  new Message({ ...attributes, datacontenttype }, data, 'value')
const raw = (data: string | Uint8Array, datacontenttype?: string) =>
  new Message({ ...attributes, datacontenttype }, data)

test.each([
  [undefined, true],
  ['application/json', true],
  ['Application/JSON; charset=utf-8', true],
  ['text/json', true],
  ['application/vnd.shop.order+json', true],
  ['application/cloudevents+json;x=y', true],
  ['text/plain', false],
  ['application/jsonlines', false],
  ['application/xml', false],
  ['image/png; note=+json', false],
])('the content type %s is JSON: %s', (type, expected) => {
  expect(isJsonType(type)).toBe(expected)
})

describe('encoding', () => {
  test.each<[string, unknown, string | undefined, unknown]>([
    ['an object', { a: 1 }, undefined, '{"a":1}'],
    ['a string', 'x', undefined, '"x"'],
    ['an empty string', '', 'application/json', '""'],
    ['null', null, undefined, 'null'],
    ['false', false, undefined, 'false'],
    ['a date', new Date(0), undefined, '"1970-01-01T00:00:00.000Z"'],
    ['no number, as JSON has it', Number.NaN, undefined, 'null'],
    ['functions inside, as JSON has it', { a: () => 1, b: [undefined] }, undefined, '{"b":[null]}'],
    ['text', 'x', 'text/plain', 'x'],
    ['bytes', Uint8Array.of(1), 'image/png', Uint8Array.of(1)],
  ])('%s', (_, data, type, expected) => {
    expect(encodeData(value(data, type)).data).toEqual(expected)
  })

  test('leaves what is raw as it is, to the object', () => {
    const message = raw('not even JSON')
    expect(encodeData(message)).toBe(message)
  })

  const circle: Record<string, unknown> = { name: 'secret' }
  circle['items'] = [{ owner: circle }]
  const throwing = {
    toJSON() {
      throw new Error('secret')
    },
  }
  const unreadable = {
    get secretly() {
      throw new Error('secret')
    },
  }
  let deep: unknown[] = []
  for (let i = 0; i < 100_000; i++) deep = [deep]

  test.each<[string, unknown, string]>([
    ['undefined', undefined, 'its data is undefined'],
    ['a function', () => 'secret', 'its data is a function'],
    ['a symbol', Symbol('secret'), 'its data is a symbol'],
    ['a BigInt', 10n, 'its data is a BigInt'],
    ['a BigInt inside', { items: [{ price: 4111n }] }, 'its data at "items.0.price" is a BigInt'],
    ['a circle', circle, 'its data at "items.0.owner" refers back'],
    ['a toJSON that throws', { a: { b: throwing } }, 'its data at "a.b" has a toJSON that throws'],
    ['a toJSON that gives a BigInt', { a: { toJSON: () => 4111n } }, 'its data at "a" is a BigInt'],
    ['a toJSON that gives nothing', { toJSON: () => undefined }, 'its data is an object without JSON'],
    ['a getter that throws', { a: unreadable }, 'its data at "a.secretly" throws when it is read'],
    ['too deep a structure', deep, 'its data is nested too deeply'],
    ['bytes as JSON', Uint8Array.of(1), 'its data is bytes; give the message a datacontenttype'],
  ])('%s cannot be: the error says where, never what', (_, data, where) => {
    const error = thrown(() => encodeData(value(data)))
    expect(error.code).toBe('NOT_SERIALISABLE')
    expect(error.message).toContain(`order.placed m-1: ${where}`)
    expect(error.message).not.toMatch(/secret\b|4111/)
    expect(classify(error)).toBe('permanent')
  })

  test('another type takes only text and bytes', () => {
    const error = thrown(() => encodeData(value({ card: 4111 }, 'text/plain')))
    expect(error.code).toBe('NOT_SERIALISABLE')
    expect(error.message).toBe(
      'order.placed m-1: its data must be a string or bytes, as its datacontenttype is "text/plain" [NOT_SERIALISABLE]',
    )
  })
})

describe('decoding', () => {
  test.each<[string, string | Uint8Array, string | undefined, unknown]>([
    ['JSON text', '{"a":1}', undefined, { a: 1 }],
    ['JSON bytes', Buffer.from('{"a":"é"}'), 'application/json', { a: 'é' }],
    ['JSON bytes with a byte order mark', Buffer.from('\ufeff[]'), undefined, []],
    ['null', 'null', undefined, null],
    ['nothing', '', undefined, undefined],
    ['no bytes', new Uint8Array(), undefined, undefined],
    ['text', '{', 'text/plain', '{'],
    ['text in bytes', Buffer.from('é'), 'text/plain', 'é'],
    ['text in bytes, said to be UTF-8', Buffer.from('é'), 'text/csv; charset="UTF-8"', 'é'],
    ['text in another charset', Uint8Array.of(0xe9), 'text/plain; charset=latin1', Uint8Array.of(0xe9)],
    ['bytes', Uint8Array.of(0, 255), 'image/png', Uint8Array.of(0, 255)],
  ])('%s', (_, data, type, expected) => {
    expect(decodeData(raw(data, type))).toEqual(expected)
  })

  test('leaves a value as it is', () => {
    expect(decodeData(value('{"a":1}'))).toBe('{"a":1}')
  })

  test.each([
    ['malformed JSON', '{"card": 4111', undefined],
    ['bytes that are no UTF-8', Uint8Array.of(0x22, 0xff, 0x22), 'application/json'],
    ['text that is no UTF-8', Uint8Array.of(0xff), 'text/plain'],
  ])('%s is an invalid payload, and not repeated', (_, data, type) => {
    const error = thrown(() => decodeData(raw(data, type)))
    expect(error.code).toBe('INVALID_PAYLOAD')
    expect(error.message).toContain('order.placed m-1: the data is not')
    expect(error.message).not.toContain('4111')
    expect(error.cause).toBeUndefined()
    expect(classify(error)).toBe('permanent')
  })

  test('names of prototypes are only names', () => {
    const data = decodeData(raw('{"__proto__":{"polluted":true},"constructor":1}')) as object
    expect(Object.keys(data)).toEqual(['__proto__', 'constructor'])
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined()
  })
})
