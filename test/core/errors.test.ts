import { describe, expect, test } from 'vitest'
import {
  classify,
  type ErrorKind,
  errorSummary,
  MAX_ERROR_LENGTH,
  Reject,
  RetryLater,
  Unavailable,
  WaybillError,
} from '../../src/core/index.ts'

const error = (properties: object, message = 'failed') => Object.assign(new Error(message), properties)
const sql = (code: string) => error({ code, severity: 'ERROR' })
const caused = (cause: unknown) => new Error('the step failed', { cause })

describe('an error is classified', () => {
  test.each<[string, unknown, ErrorKind]>([
    ['Reject', new Reject('no such customer'), 'permanent'],
    ['RetryLater', new RetryLater('1s'), 'transient'],
    ['Unavailable', new Unavailable('broker away'), 'down'],
    ['an invalid payload', new WaybillError('INVALID_PAYLOAD', ''), 'permanent'],
    ['a malformed message', new WaybillError('MALFORMED_MESSAGE', ''), 'permanent'],
    ['data that cannot be serialised', new WaybillError('NOT_SERIALISABLE', ''), 'permanent'],
    ['no version', new WaybillError('NO_VERSION', ''), 'permanent'],
    ['another code of ours', new WaybillError('PUBLISH_FAILED', ''), 'transient'],
    ['a timeout', AbortSignal.timeout(0).reason ?? new DOMException('late', 'TimeoutError'), 'transient'],
    ['an abort', AbortSignal.abort().reason, 'transient'],
    ['a refused connection', error({ code: 'ECONNREFUSED' }), 'transient'],
    ['a name that is not resolved', error({ code: 'EAI_AGAIN' }), 'transient'],
    ['a socket of fetch', error({ code: 'UND_ERR_SOCKET' }), 'transient'],
    ['SQLSTATE 08, connection exception', sql('08006'), 'transient'],
    ['SQLSTATE 40, serialisation failure', sql('40001'), 'transient'],
    ['SQLSTATE 40, deadlock', sql('40P01'), 'transient'],
    ['SQLSTATE 53, too many connections', sql('53300'), 'transient'],
    ['SQLSTATE 57, shutting down', sql('57P01'), 'transient'],
    ['a lock not had', sql('55P03'), 'transient'],
    ['a server that became read-only', sql('25006'), 'transient'],
    ['SQLSTATE 23, a constraint', sql('23505'), 'permanent'],
    ['SQLSTATE 22, a value', sql('22P02'), 'permanent'],
    ['SQLSTATE 42, a missing table', sql('42P01'), 'permanent'],
    ['five capitals that are no SQLSTATE', error({ code: 'EBUSY' }), 'transient'],
    ['Redis LOADING', error({}, 'LOADING Redis is loading the dataset in memory'), 'transient'],
    ['Redis CLUSTERDOWN', error({}, 'CLUSTERDOWN The cluster is down'), 'transient'],
    ['Redis TRYAGAIN', error({}, 'TRYAGAIN Multiple keys request during rehashing of slot'), 'transient'],
    ['gRPC deadline exceeded', error({ code: 4 }), 'transient'],
    ['gRPC resource exhausted', error({ code: 8 }), 'transient'],
    ['gRPC unavailable', error({ code: 14 }), 'transient'],
    ['an error nobody knows', new Error('?'), 'transient'],
    ['no error at all', 'thrown text', 'transient'],
    ['nothing', undefined, 'transient'],
    ['what caused it: a rejection', caused(new Reject('no')), 'permanent'],
    ['what caused what caused it', caused(caused(sql('23505'))), 'permanent'],
    ['what caused it: a broker that is away', caused(new Unavailable('away')), 'down'],
    ['the outer before the inner', new RetryLater('1s', 'wait', { cause: new Reject('no') }), 'transient'],
  ])('%s', (_, given, kind) => {
    expect(classify(given)).toBe(kind)
  })

  test('a transient cause is found before the default says so, past a permanent one further in', () => {
    expect(classify(caused(error({ code: 'ECONNRESET', cause: new Reject('no') })))).toBe('transient')
  })

  test('a circle of causes ends', () => {
    const first = new Error('first')
    first.cause = new Error('second', { cause: first })
    expect(classify(first)).toBe('transient')
  })
})

test('errors carry their code, name and cause', () => {
  const cause = new Error('below')
  for (const made of [new Reject('r', { cause }), new RetryLater(1, 'r', { cause }), new Unavailable('r', { cause })]) {
    expect(made).toBeInstanceOf(WaybillError)
    expect(made.cause).toBe(cause)
    expect(made.message).toBe('r')
    expect(made.name).toBe(made.constructor.name)
  }
})

describe('the summary of an error', () => {
  test.each<[string, unknown, string]>([
    ['name, code, message', sql('23505'), 'Error [23505]: failed'],
    ['our own', new Reject('no such customer'), 'Reject [REJECTED]: no such customer'],
    ['one line', new Error('a\n  b\tc'), 'Error: a b c'],
    ['not an error', 'secret', 'Error: non-error thrown (string)'],
    ['null', null, 'Error: non-error thrown (null)'],
    [
      'a constraint keeps its name',
      new Error('duplicate key value violates unique constraint "orders_pkey"'),
      'Error: duplicate key value violates unique constraint "orders_pkey"',
    ],
    [
      'a value PostgreSQL could not read',
      new Error('invalid input syntax for type uuid: "secret"'),
      'Error: invalid input syntax for type uuid: "…"',
    ],
    [
      'a number out of range',
      new Error('value "99999999999" is out of range for type integer'),
      'Error: value "…" is out of range for type integer',
    ],
    ['what a parser quotes', parseError('{"card": 4111'), 'cut'],
    [
      'what a parser quotes in part',
      parseError(`{"card": "4111", "owner": secret, "more": "${'x'.repeat(99)}"}`),
      'cut',
    ],
    ['a long quoted text', new Error(`bad "${'4111'.repeat(20)}" here`), 'Error: bad "…" here'],
    ['an object', new Error(`bad row {"card":"${'4111'.repeat(20)}"}`), 'Error: bad row …'],
  ])('%s', (_, given, expected) => {
    const summary = errorSummary(given)
    if (expected === 'cut') expect(summary).not.toMatch(/4111|secr/)
    else expect(summary).toBe(expected)
  })

  test('is bounded', () => {
    expect(errorSummary(new Error('word '.repeat(1000)))).toHaveLength(MAX_ERROR_LENGTH)
  })

  test('never reads what drivers say about the row', () => {
    expect(errorSummary(error({ detail: 'Key (card)=(4111) exists', where: '4111' }))).not.toContain('4111')
  })
})

function parseError(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (thrown) {
    return thrown
  }
}
