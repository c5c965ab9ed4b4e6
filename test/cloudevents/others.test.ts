import { describe, expect, test } from 'vitest'
import { decoderOf } from '../../src/brokers/kafka/encoding.ts'
import { decode as natsDecode, encode as natsEncode } from '../../src/brokers/nats/encoding.ts'
import { decode as amqpDecode } from '../../src/brokers/rabbitmq/encoding.ts'
import { contentMode, fromBinary, fromStructured, isJsonType } from '../../src/cloudevents/index.ts'
import { decodeData, event, Message } from '../../src/core/index.ts'
import type { AmqpDelivery } from '../../src/drivers/amqp.ts'

/** What the SDKs of other languages send, byte for byte as far as it differs from what we would. */
const NAMES = { specversion: '1.0', id: '1', source: '/s', type: 't' }
const withPrefix = (prefix: string, more: Record<string, unknown> = {}) =>
  Object.fromEntries(Object.entries({ ...NAMES, ...more }).map(([name, value]) => [prefix + name, value]))
const amqp = (headers: Record<string, unknown>, properties: object = {}, content = '<a/>') =>
  amqpDecode({
    fields: { exchange: '', routingKey: '' },
    properties: { headers, ...properties },
    content: Buffer.from(content),
  } as unknown as AmqpDelivery)

describe('events of other SDKs', () => {
  test('datacontenttype as an attribute: NATS, Kafka, AMQP', () => {
    const type = { datacontenttype: 'text/xml' }
    const nats = natsDecode({
      headers: withPrefix('ce-', type) as Record<string, string>,
      data: Buffer.from('<a/>'),
      subject: 's',
      sequence: 1,
    })
    const kafka = decoderOf(undefined)(
      { offset: 0, key: null, value: Buffer.from('<a/>'), headers: withPrefix('ce_', type) as never },
      't',
    )
    for (const one of [nats, kafka, amqp(withPrefix('cloudEvents:', type)), amqp(withPrefix('cloudEvents_', type))]) {
      expect([one.datacontenttype, decodeData(one)?.toString()]).toEqual(['text/xml', '<a/>'])
    }
    // What the protocol itself says goes before.
    expect(fromBinary({ ...withPrefix('ce-', type), 'content-type': 'text/plain' }, 'x').datacontenttype).toBe(
      'text/plain',
    )
    expect(natsEncode(new Message({ ...NAMES, datacontenttype: 'text/xml' }, '<a/>')).headers).toMatchObject({
      'content-type': 'text/xml',
      'ce-datacontenttype': 'text/xml',
    })
  })

  test('headers of HTTP over AMQP, as Python sends them', () => {
    const one = amqp(withPrefix('ce-', { subject: 'a%20b' }), { contentType: 'application/json' }, '{"n":1}')
    expect([one.id, one.subject, decodeData(one)]).toEqual(['1', 'a b', { n: 1 }])
  })

  test('times and bytes of AMQP itself', () => {
    const native = {
      time: { '!': 'timestamp', value: 1_700_000_000 },
      signature: Buffer.from([0, 255]),
      partitionkey: Buffer.from('k1'),
    }
    const one = amqp(withPrefix('cloudEvents:', native), { contentType: 'text/xml' })
    expect(one.time).toBe('2023-11-14T22:13:20.000Z')
    expect([...(one.extensions['signature'] as Uint8Array)]).toEqual([0, 255])
    expect(one.key).toBe('k1')
  })

  test('data_base64 without a content type is bytes, and any subtype json is JSON', () => {
    const one = fromStructured(JSON.stringify({ ...NAMES, data_base64: 'AP8=' }))
    expect([...(decodeData(one) as Uint8Array)]).toEqual([0, 255])
    expect(['text/json', 'image/json', 'a/b+json', 'a/jsonp'].map(isJsonType)).toEqual([true, true, true, false])
  })

  test.each([
    ['application/cloudevents+json; charset=utf-8', 'structured'],
    ['application/cloudevents', 'structured'],
    ['application/cloudevents-batch+json', 'batch'],
    ['application/cloudevents+avro', 'unknown'],
    ['application/cloudevents+xml; charset=utf-8', 'unknown'],
    ['application/cloudeventsfoo', 'binary'],
  ])('%s is %s', (type, mode) => expect(contentMode(type)).toBe(mode))
})

describe('what an event may hold', () => {
  test.each(['2024-02-30T00:00:00Z', '2023-02-29T00:00:00Z', '2024-04-31T00:00:00Z', '2024-01-01T24:00:00Z'])(
    '%s is no time',
    (time) => expect(() => fromStructured(JSON.stringify({ ...NAMES, time }))).toThrow(/RFC 3339/),
  )
  test('29 February of a leap year is one', () => {
    expect(fromStructured(JSON.stringify({ ...NAMES, time: '2024-02-29T23:59:59Z' })).time).toBe('2024-02-29T23:59:59Z')
  })

  test('values are checked when it is made, and taken as they come when it is read', () => {
    const Placed = event<object>('order.placed')
    for (const options of [{ subject: 'a\u0000b' }, { key: 'a\nb' }, { source: 'no uri' }, { id: '\ud800' }]) {
      expect(() => Placed({}, options), JSON.stringify(options)).toThrow(/MALFORMED_MESSAGE|it must be/)
    }
    expect(() => event('a.b', undefined, { source: 'with space' })).toThrow(/source/)
    expect(() => event('a.b', undefined, { dataschema: '/relative' })).toThrow(/absolute URI/)
    expect(event<object>('größe.geändert')({}).source).toBe('/gr%C3%B6%C3%9Fe')
    expect(fromStructured(JSON.stringify({ ...NAMES, source: 'no uri' })).source).toBe('no uri')
  })
})
