import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  contentMode,
  fromBatch,
  fromBinary,
  fromStructured,
  toBatch,
  toBinary,
  toStructured,
} from '../../src/cloudevents/index.ts'
import { type Attributes, decodeData, encodeData, Message, type RawMessage } from '../../src/core/index.ts'
import { message } from '../core/arbitrary.ts'
import { thrown } from '../core/thrown.ts'

const attributes: Attributes = { id: '1', source: '/order', type: 'order.placed' }
const bare = '"specversion":"1.0","id":"1","source":"/order","type":"order.placed"'
const message1 = (data: string | Uint8Array, datacontenttype?: string) =>
  new Message({ ...attributes, datacontenttype }, data)

/** Attributes as they come out of headers: text. */
const textual = (given: Message) =>
  Object.fromEntries(Object.entries(given.extensions).map(([name, value]) => [name, String(value)]))

describe('whatever is sent is received', () => {
  const same = (received: RawMessage, sent: Message, extensions: unknown = sent.extensions) => {
    const { datacontenttype, ...context } = received.attributes()
    const { datacontenttype: type, ...expected } = sent.attributes()
    expect(context).toEqual({ ...expected, extensions })
    expect(datacontenttype ?? 'application/json').toBe(type ?? 'application/json')
    const value = decodeData(received)
    expect(ArrayBuffer.isView(value) ? new Uint8Array(value as Uint8Array) : value).toEqual(
      decodeData(encodeData(sent)),
    )
  }

  test('in structured mode', () => {
    fc.assert(fc.property(message, (sent) => same(fromStructured(toStructured(sent)), sent)))
  })

  test('in structured mode as bytes', () => {
    fc.assert(fc.property(message, (sent) => same(fromStructured(Buffer.from(toStructured(sent))), sent)))
  })

  test('in batches', () => {
    const property = fc.property(fc.array(message, { maxLength: 5 }), fc.boolean(), (sent, spaced) => {
      const text = toBatch(sent)
      const received = fromBatch(spaced ? JSON.stringify(JSON.parse(text), undefined, 2) : text)
      expect(received).toHaveLength(sent.length)
      for (const [at, one] of received.entries()) same(one, sent[at]!)
    })
    fc.assert(property)
  })

  test.each(['ce-', 'ce_', 'cloudEvents:', 'cloudEvents_'])('in binary mode with %s', (prefix) => {
    const property = fc.property(message, (sent) => {
      const { headers, body } = toBinary(sent, prefix)
      same(fromBinary(headers, body, prefix), sent, textual(sent))
    })
    fc.assert(property)
  })

  test('and through every mode in turn', () => {
    const property = fc.property(message, (sent) => {
      const { headers, body } = toBinary(fromStructured(toStructured(sent)))
      same(fromStructured(toStructured(fromBinary(headers, body))), sent, textual(sent))
    })
    fc.assert(property)
  })
})

describe('structured mode', () => {
  test('embeds JSON as it stands, and takes it out as it stands', () => {
    const data = '{ "b": 12345678901234567890, "2": 1e400,\n "1": [1.0, "\\u0041\\"}"], "b": 0.10 }'
    const text = toStructured(message1(data))
    expect(text).toBe(`{${bare},"data":${data}}`)
    expect(fromStructured(text).data).toBe(data)
    expect(fromStructured(text).form).toBe('json')
  })

  test.each([
    ['first', `{"data":{"x":"}"} , ${bare}}`, '{"x":"}"}'],
    ['spaced', `\n{ "data" : [1, 2] ,${bare} }\t`, '[1, 2]'],
    ['a number', `{${bare},"data":-1.50}`, '-1.50'],
    ['a string', `{${bare},"data":"a\\\\"}`, '"a\\\\"'],
    ['null', `{${bare},"data":null}`, 'null'],
    ['under an escaped name', `{${bare},"d\\u0061ta":true}`, 'true'],
    ['spaced, at the end', `{${bare},"data" :\n {"a" : "}"} \n } \n`, '{"a" : "}"}'],
    ['before an attribute', `{"data":"}",${bare}}`, '"}"'],
    ['before a second id', `{${bare},"data":{},"id":"1"}`, '{}'],
    ['the last of two', `{${bare},"data":1,"data":2}`, '2'],
    ['not one inside another', `{${bare},"data":{"data":1}}`, '{"data":1}'],
    ['spaced, with one inside', `{${bare}, "data": {"a":1,"data":2}}`, '{"a":1,"data":2}'],
    ['first, with one inside', `{"data":{"a":[{"b":1,"data":2}]},${bare}}`, '{"a":[{"b":1,"data":2}]}'],
    ['of two, the last, though the first is an object', `{"data":{},${bare},"data":3}`, '3'],
    [
      'what looks like it in text',
      `{${bare},"subject":"a,\\"data\\":1}","data":{"b":",\\"data\\":2"}}`,
      '{"b":",\\"data\\":2"}',
    ],
    ['none', `{${bare}}`, ''],
  ])('finds the data: %s', (_, text, data) => {
    expect(fromStructured(text).data).toBe(data)
  })

  test('every decoding has a value of its own', () => {
    const message = fromStructured(`{${bare},"data":{"items":[]}}`)
    const first = decodeData(message) as { items: number[] }
    first.items.push(1)
    expect(decodeData(message)).toEqual({ items: [] })
    expect(decodeData(fromStructured(toStructured(message)).with({ subject: 's' }))).toEqual({ items: [] })
  })

  test('absent data stays absent, and null stays null', () => {
    const absent = fromStructured(`{${bare}}`)
    expect(decodeData(absent)).toBeUndefined()
    expect(toStructured(absent)).toBe(`{${bare}}`)
    const nothing = fromStructured(`{${bare},"data":null}`)
    expect(decodeData(nothing)).toBeNull()
    expect(toStructured(nothing)).toBe(`{${bare},"data":null}`)
  })

  test('text is a string, bytes are base64', () => {
    expect(toStructured(message1('a"b', 'text/plain'))).toContain('"data":"a\\"b"')
    expect(toStructured(message1(new Uint8Array([0, 255]), 'image/png'))).toContain('"data_base64":"AP8="')
    expect(fromStructured(`{${bare},"datacontenttype":"image/png","data_base64":"AP8="}`).data).toEqual(
      new Uint8Array([0, 255]),
    )
  })

  test('bytes that are JSON are embedded; what claims to be and is not goes as base64, unchanged', () => {
    expect(toStructured(message1(Buffer.from('{"a":1}')))).toBe(`{${bare},"data":{"a":1}}`)
    const forged = '1,"tenantid":"other"'
    const text = toStructured(message1(forged))
    expect(JSON.parse(text)).not.toHaveProperty('tenantid')
    expect(Buffer.from(fromStructured(text).data as Uint8Array).toString()).toBe(forged)
    const bytes = Uint8Array.of(0x22, 0xff, 0x22)
    expect(fromStructured(toStructured(message1(bytes))).data).toEqual(bytes)
  })

  test('null says that an attribute is not set', () => {
    const read = fromStructured(`{${bare},"subject":null,"tenantid":null,"data_base64":null,"data":1}`)
    expect([read.subject, read.tenant, read.data]).toEqual([undefined, undefined, '1'])
  })

  test('an extension cannot be written over an attribute', () => {
    for (const name of ['id', 'data', 'data_base64', 'x","id":"2', '__proto__']) {
      const sent = new Message({ ...attributes, extensions: Object.fromEntries([[name, 'x']]) }, '1')
      for (const write of [toStructured, toBinary]) expect(thrown(() => write(sent)).code).toBe('MALFORMED_MESSAGE')
    }
  })

  test.each<[string, string, string | Uint8Array]>([
    ['event', 'not JSON', 'hello'],
    ['event', 'nothing', ''],
    ['event', 'a batch', `[{${bare}}]`],
    ['event', 'a string', '"secret"'],
    ['event', 'null', 'null'],
    ['event', 'half', `{${bare}`],
    ['event', 'cut off in its data', `{${bare},"data":{"a":"secret`],
    ['event', 'wrong in its data', `{${bare},"data":{"a":secret}}`],
    ['event', 'wrong after its data', `{${bare},"data":{"a":4111}]}`],
    ['event', 'more than one', `{${bare},"data":1}{"a":1}`],
    ['event', 'without an end', `{${bare},"data":1`],
    ['event', 'not UTF-8', Uint8Array.of(0x7b, 0xff, 0x7d)],
    ['id', 'missing', '{"specversion":"1.0","source":"/o","type":"t"}'],
    ['id', 'empty', '{"specversion":"1.0","id":"","source":"/o","type":"t"}'],
    ['id', 'a number', '{"specversion":"1.0","id":1,"source":"/o","type":"t"}'],
    ['source', 'missing', '{"specversion":"1.0","id":"1","type":"t"}'],
    ['type', 'null', '{"specversion":"1.0","id":"1","source":"/o","type":null}'],
    ['specversion', 'missing', '{"id":"1","source":"/o","type":"t"}'],
    ['specversion', 'another', '{"specversion":"0.3","id":"1","source":"/o","type":"t"}'],
    ['specversion', 'a number', '{"specversion":1.0,"id":"1","source":"/o","type":"t"}'],
    ['subject', 'an object', `{${bare},"subject":{}}`],
    ['time', 'bad', `{${bare},"time":"noon"}`],
    ['datacontenttype', 'a number', `{${bare},"datacontenttype":1}`],
    ['tenantid', 'an array', `{${bare},"tenantid":["a"]}`],
    ['price', 'a fraction', `{${bare},"price":1.5}`],
    ['traceId', 'a capital', `{${bare},"traceId":"x"}`],
    ['__proto__', 'an object', `{${bare},"__proto__":{"polluted":true}}`],
    ['__proto__', 'null', `{${bare},"__proto__":null}`],
    ['data_base64', 'not base64', `{${bare},"data_base64":"%%%%"}`],
    ['data_base64', 'cut off', `{${bare},"data_base64":"AP8"}`],
    ['data_base64', 'a number', `{${bare},"data_base64":1}`],
    ['data_base64', 'beside data', `{${bare},"data":1,"data_base64":"AP8="}`],
    ['data', 'an object where text is meant', `{${bare},"datacontenttype":"text/plain","data":{"card":4111}}`],
    ['data', 'a number where text is meant', `{${bare},"datacontenttype":"text/plain","data":4111}`],
  ])('a wrong %s is named: %s', (name, _, text) => {
    const error = thrown(() => fromStructured(text))
    expect(error.code).toBe('MALFORMED_MESSAGE')
    expect(error.message).toContain(`message attribute ${JSON.stringify(name)}: `)
    expect(error.message).not.toMatch(/secret|4111/)
    expect(Object.hasOwn(Object.prototype, 'polluted')).toBe(false)
  })
})

describe('a batch', () => {
  test('keeps every element as it stands', () => {
    const text = `[ {${bare},"data":{ "a": [1,2] }} ,\n{"data":"x]}",${bare}},{${bare}}]`
    expect(fromBatch(text).map(({ data }) => data)).toEqual(['{ "a": [1,2] }', '"x]}"', ''])
    expect(fromBatch(' [ ] ')).toEqual([])
    expect(toBatch([])).toBe('[]')
  })

  test.each([
    ['batch', 'an event', `{${bare}}`],
    ['batch', 'not JSON', '['],
    ['event', 'a number in it', `[{${bare}},4111]`],
    ['id', 'a malformed event in it', `[{${bare}},{"specversion":"1.0"}]`],
  ])('a wrong %s is named: %s', (name, _, text) => {
    const error = thrown(() => fromBatch(text))
    expect(error.message).toContain(`message attribute "${name}": `)
    expect(error.message).not.toContain('4111')
  })
})

describe('binary mode', () => {
  const extensions = { tenantid: 'Zoë "1" 100%', eventversion: 2, flag: true, key: Uint8Array.of(0, 255) }
  const full = new Message({ ...attributes, subject: 'a b', time: '2026-01-01T00:00:00Z', extensions }, { total: 1 })

  test('over HTTP, header values are percent-encoded', () => {
    const { headers, body } = toBinary(full)
    expect(headers).toEqual({
      'content-type': 'application/json',
      'ce-specversion': '1.0',
      'ce-id': '1',
      'ce-source': '/order',
      'ce-type': 'order.placed',
      'ce-subject': 'a%20b',
      'ce-time': '2026-01-01T00:00:00Z',
      'ce-tenantid': 'Zo%C3%AB%20%221%22%20100%25',
      'ce-eventversion': '2',
      'ce-flag': 'true',
      'ce-key': 'AP8=',
    })
    expect(body).toBe('{"total":1}')
    expect(fromBinary(headers, body).tenant).toBe('Zoë "1" 100%')
  })

  test('elsewhere they are not', () => {
    const { headers, body } = toBinary(full, 'ce_')
    expect(headers).toMatchObject({ ce_id: '1', ce_subject: 'a b', ce_tenantid: 'Zoë "1" 100%', ce_eventversion: '2' })
    expect(fromBinary(headers, body, 'ce_').tenant).toBe('Zoë "1" 100%')
    expect(toBinary(full, 'ce-', false).headers['ce-subject']).toBe('a b')
    expect(fromBinary({ ...toBinary(full, 'ce_').headers, ce_subject: '%41' }, '', 'ce_').subject).toBe('%41')
  })

  const headersWith = (headers: object) => ({ ...toBinary(new Message(attributes, '1')).headers, ...headers })

  test.each([
    ['Euro%20%E2%82%AC%20%F0%9F%98%80', 'Euro € 😀'],
    ['%41%42', 'AB'],
    ['"a \\"quoted\\" value"', 'a "quoted" value'],
    ['"%41"', 'A'],
    ['50% off', '50% off'],
    ['%', '%'],
    ['%zz%20', '%zz '],
  ])('%s is read as %s', (header, value) => {
    expect(fromBinary(headersWith({ 'ce-subject': header }), '').subject).toBe(value)
  })

  test.each(['"1.0"', '%31%2e0'])('the version is a header as any other: %s', (header) => {
    expect(fromBinary(headersWith({ 'ce-specversion': header }), '').id).toBe('1')
  })

  test('header names are matched in any case', () => {
    const headers = {
      'Content-Type': 'text/plain',
      'CE-SpecVersion': '1.0',
      'Ce-Id': '1',
      'CE-SOURCE': '/o',
      'cE-type': 't',
    }
    expect(fromBinary(headers, 'x').attributes()).toMatchObject({
      id: '1',
      source: '/o',
      type: 't',
      datacontenttype: 'text/plain',
    })
  })

  test('AMQP: both prefixes are read, and numbers and booleans kept', () => {
    const headers = {
      'cloudEvents:specversion': '1.0',
      cloudEvents_id: '1',
      'cloudEvents:source': '/o',
      cloudEvents_type: 't',
    }
    const read = fromBinary({ ...headers, 'cloudEvents:eventversion': 2, cloudEvents_flag: false }, '', 'cloudEvents:')
    expect(read.extensions).toEqual({ eventversion: 2, flag: false })
  })

  test('Kafka: header values are bytes, and a tombstone has no data', () => {
    const headers = { ce_specversion: '1.0', ce_id: 'é', ce_source: '/o', ce_type: 't', ce_tenantid: 'a' }
    const buffers = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, Buffer.from(value)]))
    const read = fromBinary(buffers, null, 'ce_')
    expect([read.id, read.tenant, decodeData(read)]).toEqual(['é', 'a', undefined])
  })

  test('what a header said in the message before is not taken for what it says in this one', () => {
    const first = { ce_specversion: '1.0', ce_id: 'a1', ce_source: '/o', ce_type: 't', ce_time: '2025-01-02T03:04:05Z' }
    const read = (changes: object, as: (value: string) => unknown) => {
      const all = Object.entries({ ...first, ce_tenantid: 'acme', ...changes })
      const { id, type, tenant, time } = fromBinary(Object.fromEntries(all.map(([k, v]) => [k, as(v)])), '', 'ce_')
      return [id, type, tenant, time]
    }
    const [bytes, text] = [(value: string) => Buffer.from(value), (value: string) => value]
    for (const as of [bytes, text, bytes]) {
      expect(read({}, as)).toEqual(['a1', 't', 'acme', first.ce_time])
      expect(read({ ce_id: 'b1', ce_tenantid: 'bcme' }, as)).toEqual(['b1', 't', 'bcme', first.ce_time])
      expect(read({ ce_tenantid: '' }, as)).toEqual(['a1', 't', undefined, first.ce_time])
      expect(read({ ce_tenantid: 'acm' }, as)).toEqual(['a1', 't', 'acm', first.ce_time])
      expect(thrown(() => read({ ce_time: '2025-01-02T93:04:05Z' }, as)).code).toBe('MALFORMED_MESSAGE')
      expect(thrown(() => read({ ce_type: '' }, as)).code).toBe('MALFORMED_MESSAGE')
    }
    expect(fromBinary({ 'ce-specversion': '1.0', 'ce-id': '%41', 'ce-source': '/', 'ce-type': 't' }, '').id).toBe('A')
    expect(
      fromBinary({ 'ce-specversion': '1.0', 'ce-id': '%41', 'ce-source': '/', 'ce-type': 't' }, '', 'ce-', false).id,
    ).toBe('%41')
  })

  test('other headers are none of ours', () => {
    expect(
      fromBinary(headersWith({ accept: '*/*', 'x-ce-id': '2', cookie: ['a', 'b'], 'ce-none': undefined }), '')
        .extensions,
    ).toEqual({})
  })

  test('without data there is no content type', () => {
    expect(toBinary(new Message(attributes, '')).headers).not.toHaveProperty('content-type')
    expect(decodeData(fromBinary(headersWith({}), Buffer.alloc(0)))).toBeUndefined()
  })

  test.each<[string, string, object]>([
    ['id', 'missing', { 'ce-id': undefined }],
    ['id', 'empty', { 'ce-id': '' }],
    ['source', 'missing', { 'ce-source': null }],
    ['type', 'an array', { 'ce-type': ['a', 'b'] }],
    ['specversion', 'missing', { 'ce-specversion': undefined }],
    ['specversion', 'another', { 'ce-specversion': '2.0' }],
    ['time', 'bad', { 'ce-time': 'noon' }],
    ['subject', 'an overlong encoding', { 'ce-subject': '%C0%A0' }],
    ['subject', 'a number', { 'ce-subject': 5 }],
    ['subject', 'bytes that are no text', { 'ce-subject': Uint8Array.of(255) }],
    ['tenantid', 'an object', { 'ce-tenantid': {} }],
    ['tenantid', 'half a character', { 'ce-tenantid': '%E2%82' }],
    ['__proto__', 'polluting', { 'ce-__proto__': 'x' }],
    ['trace-id', 'not a name', { 'ce-trace-id': 'x' }],
    ['datacontenttype', 'a number', { 'content-type': 5 }],
  ])('a wrong %s is named: %s', (name, _, headers) => {
    const error = thrown(() => fromBinary(headersWith(headers), '1'))
    expect(error.code).toBe('MALFORMED_MESSAGE')
    expect(error.message).toContain(`message attribute ${JSON.stringify(name)}: `)
  })
})

test.each<[string | undefined, string]>([
  ['application/cloudevents+json', 'structured'],
  ['application/cloudevents+json; charset=utf-8', 'structured'],
  ['Application/CloudEvents+JSON', 'structured'],
  ['application/cloudevents-batch+json', 'batch'],
  ['application/json', 'binary'],
  [undefined, 'binary'],
])('the content type %s means %s mode', (type, mode) => {
  expect(contentMode(type)).toBe(mode)
})
