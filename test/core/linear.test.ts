import { describe, expect, test } from 'vitest'
import { bytesOf } from '../../src/brokers/http/addresses.ts'
import { delayOf } from '../../src/brokers/http/request.ts'
import { contentMode, fromBinary, fromStructured } from '../../src/cloudevents/index.ts'
import {
  classify,
  decodeData,
  errorSummary,
  isJsonType,
  Message,
  patternOf,
  Reject,
  telemetry,
} from '../../src/core/index.ts'
import { issueList } from '../../src/core/schema.ts'
import { serverSaid } from '../../src/drivers/amqp-errors.ts'
import { translated } from '../../src/drivers/kafka/kafka-js-errors.ts'
import { RedisError } from '../../src/drivers/redis/redis.ts'
import { logTo, parseTraceparent } from '../../src/observability/index.ts'

/** Up to a megabyte of what makes a careless expression look at everything again and again. */
const NASTY: readonly string[] = [
  '"',
  "'",
  '`',
  '“',
  '{',
  '[{"',
  ': "',
  'value "',
  '", "',
  'a"',
  'column "a" ',
  ' ',
  '\n',
  ' (was ',
  '%',
  '%41',
  ';',
  '; charset',
  '@user_script: 1: A',
  ' with message ',
  'Connection terminated',
  '\ud800',
  'A',
  '1',
  '.',
  'a:1.',
  '\\u00',
  'a://',
  'token',
  'password="',
  'secret_-',
]

/** Everything that is given foreign text and looks for something in it. */
const READERS: Readonly<Record<string, (text: string) => unknown>> = {
  'errorSummary of any error': (text) => errorSummary(new Error(text)),
  'errorSummary of a Reject': (text) => errorSummary(new Reject(text)),
  'errorSummary of a name, a code and a cause': (text) =>
    errorSummary(Object.assign(new Error('a', { cause: new Error(text) }), { name: text, code: text })),
  classify: (text) => classify(Object.assign(new Error(text), { code: text, severity: 'ERROR' })),
  'the issues of a schema': (text) =>
    issueList([{ message: `${text})`, path: ['a'] }], { a: text, b: text.slice(9), c: ['x', 1, text.slice(99)] }),
  contentMode,
  isJsonType,
  decodeData: (text) => {
    const made = new Message({ id: '1', source: '/', type: 't', datacontenttype: `text/plain${text}` }, text)
    return decodeData(made)
  },
  'attributes in headers': (text) =>
    fromBinary(
      { 'ce-id': text, 'ce-source': text, 'ce-type': text, 'ce-specversion': '1.0', 'content-type': text },
      text,
    ),
  fromStructured,
  parseTraceparent,
  'a pattern of types': (text) => patternOf('test', 'order.*.*.placed')(text),
  'Retry-After': (text) => delayOf(text, 0, 1000),
  'an address': bytesOf,
  'what RabbitMQ says': (text) => serverSaid(new Error(text)),
  'what Redis says': (text) => new RedisError(text).kind,
  'what Kafka says': (text) => translated('test', new Error(text)),
  'a line of a log': (text) => {
    const log = () => {}
    const stop = logTo({ log, debug: log, info: log, warn: log, error: log })
    telemetry['message.dead'].publish({ flow: 'f', type: text, id: text, reason: text, attempt: 1, tenant: text })
    stop()
  },
}

describe('four times the text takes about four times as long:', () => {
  test.each(Object.entries(READERS))('%s', (_, read) => {
    for (const piece of NASTY) {
      let before = 0
      for (let size = 16_384; size <= 1_048_576; size *= 4) {
        const text = piece.repeat(Math.ceil(size / piece.length))
        let took = timed(read, text)
        // What seems slow may have been interrupted: the fastest of a few counts.
        for (let more = 0; more < 4 && took > 400 && took >= 8 * before; more++)
          took = Math.min(took, timed(read, text))
        // A megabyte takes some ten milliseconds; what takes sixteen times as long for four times as much, far longer.
        const grew = took > 400 ? took / before : 0
        expect(grew, `${JSON.stringify(piece)} × ${size}: ${before} ms, then ${took} ms`).toBeLessThan(8)
        before = took
      }
    }
  })
})

function timed(read: (text: string) => unknown, text: string): number {
  const began = performance.now()
  try {
    read(text)
  } catch {
    // Refusing it is fine.
  }
  return performance.now() - began
}
