import { describe, expect, test } from 'vitest'
import { decoderOf, encoderOf } from '../../src/brokers/kafka/encoding.ts'
import { decode as natsDecode, encode as natsEncode } from '../../src/brokers/nats/encoding.ts'
import { decode as amqpDecode, encode as amqpEncode } from '../../src/brokers/rabbitmq/encoding.ts'
import { contentMode, fromBinary, fromStructured, isJsonType } from '../../src/cloudevents/index.ts'
import { decodeData, event, Message } from '../../src/core/index.ts'
import type { AmqpDelivery } from '../../src/drivers/amqp.ts'
import type { KafkaRecord } from '../../src/drivers/kafka/kafka.ts'

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

  test('bytes on Kafka whose type is an attribute stay bytes, though they would pass for text', () => {
    const headers = withPrefix('ce_', { datacontenttype: 'application/octet-stream' }) as never
    const one = decoderOf(undefined)({ offset: 0, key: null, value: Buffer.from([65, 66]), headers }, 't')
    expect([...(decodeData(one) as Uint8Array)]).toEqual([65, 66])
  })

  test.each(['+json', '-batch+json', '+avro'])(
    'an event whose data is an event (%s) is not taken for that one',
    (format) => {
      const inner = JSON.stringify({ ...NAMES, id: 'inner' })
      const outer = new Message(
        { ...NAMES, id: 'outer', datacontenttype: `application/cloudevents${format}` },
        format.startsWith('-') ? `[${inner}]` : inner,
      )
      const nats = natsEncode(outer)
      const record = encoderOf(undefined)(outer, 't', undefined) as unknown as KafkaRecord
      const read = [
        natsDecode({ headers: nats.headers, data: Buffer.from(nats.data), subject: 's', sequence: 1 }),
        decoderOf(undefined)({ ...record, offset: 0 }, 't'),
        amqpDecode({ fields: { exchange: '', routingKey: '' }, ...amqpEncode(outer) } as unknown as AmqpDelivery),
      ]
      for (const one of read) {
        expect([one.id, one.datacontenttype]).toEqual(['outer', outer.datacontenttype])
        expect(Buffer.from(one.data).toString()).toBe(outer.data)
      }
    },
  )

  test('headers of HTTP over AMQP, as Python sends them', () => {
    const one = amqp(withPrefix('ce-', { subject: 'a%20b' }), { contentType: 'application/json' }, '{"n":1}')
    expect([one.id, one.subject, decodeData(one)]).toEqual(['1', 'a b', { n: 1 }])
  })

  test('the content type among the headers over AMQP, as Python gives it for HTTP: binary and structured', () => {
    const type = 'application/cloudevents+json; charset=utf-8'
    const whole = amqp({ 'Content-Type': type }, {}, JSON.stringify({ ...NAMES, data: { n: 1 } }))
    const parts = amqp({ ...withPrefix('ce-'), 'content-type': 'text/xml' })
    expect([whole.id, decodeData(whole), parts.datacontenttype]).toEqual(['1', { n: 1 }, 'text/xml'])
    expect(() => amqp({ 'content-type': 'application/cloudevents+avro' })).toThrow(
      /a format of events that is not read/,
    )
  })

  test('times and bytes of AMQP itself', () => {
    const native = {
      time: { '!': 'timestamp', value: 1_700_000_000 },
      signature: Buffer.from([0, 255]),
      partitionkey: Buffer.from('k1'),
      eventversion: Buffer.from('2'),
      correlationid: Buffer.from('c1'),
    }
    const one = amqp(withPrefix('cloudEvents:', native), { contentType: 'text/xml' })
    expect(one.time).toBe('2023-11-14T22:13:20.000Z')
    expect([...(one.extensions['signature'] as Uint8Array)]).toEqual([0, 255])
    expect(one.extensions).toMatchObject({ partitionkey: 'k1', eventversion: '2', correlationid: 'c1' })
  })

  test('any subtype json is JSON', () => {
    expect(['text/json', 'image/json', 'a/b+json', 'a/jsonp'].map(isJsonType)).toEqual([true, true, true, false])
  })

  test('data_base64 without a content type is bytes', () => {
    const one = fromStructured(JSON.stringify({ ...NAMES, data_base64: 'AP8=' }))
    expect([...(decodeData(one) as Uint8Array)]).toEqual([0, 255])
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

  const Placed = event<object>('order.placed')
  test.each([
    ['id', 'half a character', { id: '\ud800' }],
    ['id', 'a control character', { id: 'a\u007f' }],
    ['subject', 'a control character', { subject: 'a\u0000b' }],
    ['partitionkey', 'a control character', { key: 'a\nb' }],
    ['tenantid', 'a control character', { tenant: 'a\u0085b' }],
    ['note', 'a character that is none', { extensions: { note: '\ufffe' } }],
    ['source', 'a space', { source: 'no uri' }],
    ['source', 'a broken escape', { source: '/a%2' }],
    ['source', 'a letter no URI has', { source: '/größe' }],
  ])('%s with %s is refused when an event is made', (name, _, options) => {
    expect(() => Placed({}, options)).toThrow(new RegExp(`message attribute "${name}".*it must be`, 'su'))
  })

  test.each([
    ['source', { source: 'with space' }],
    ['source', { source: 'a\u0001' }],
    ['dataschema', { dataschema: '/relative' }],
    ['dataschema', { dataschema: 'order.json' }],
    ['dataschema', { dataschema: 'https://example.com/a schema' }],
  ])('%s is checked where an event is defined: %j', (name, options) => {
    expect(() => event('a.b', undefined, options)).toThrow(new RegExp(`message attribute "${name}".*it must be`, 'su'))
  })

  test('what is allowed is taken, and what others made is taken as it comes', () => {
    for (const source of ['/orders', 'urn:uuid:1', 'https://a.example/b?c=d#e', '//host/x', '%C3%BC']) {
      expect(Placed({}, { source }).source).toBe(source)
    }
    expect(event('a.b', undefined, { dataschema: 'urn:schema:1' })({}).dataschema).toBe('urn:schema:1')
    expect(event<object>('größe.geändert')({}).source).toBe('/gr%C3%B6%C3%9Fe')
    expect(fromStructured(JSON.stringify({ ...NAMES, source: 'no uri' })).source).toBe('no uri')
  })
})
