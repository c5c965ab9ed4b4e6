import { describe, expect, test } from 'vitest'
import {
  asError,
  classify,
  classifyPublish,
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
    ['our own time-out', new WaybillError('TIMEOUT', ''), 'transient'],
    ['fetch that waits for headers', error({ code: 'UND_ERR_HEADERS_TIMEOUT' }), 'transient'],
    ['a refused connection', error({ code: 'ECONNREFUSED' }), 'down'],
    ['a name that is not resolved', error({ code: 'EAI_AGAIN' }), 'down'],
    ['a certificate that has expired', error({ code: 'CERT_HAS_EXPIRED' }), 'down'],
    ['a socket of fetch', error({ code: 'UND_ERR_SOCKET' }), 'down'],
    ['a connection that pg lost', new Error('Connection terminated unexpectedly'), 'down'],
    ['a pool of pg that is empty', new Error('timeout exceeded when trying to connect'), 'down'],
    ['a connection that postgres.js lost', error({ code: 'CONNECTION_CLOSED' }), 'down'],
    ['an outbox that is not there', new WaybillError('NOT_MIGRATED', '', { cause: sql('42P01') }), 'down'],
    ['an outbox that is forbidden', new WaybillError('NO_PERMISSION', '', { cause: sql('42501') }), 'down'],
    ['a commit whose answer was lost', new WaybillError('COMMIT_UNKNOWN', '', { cause: sql('57P01') }), 'down'],
    ['SQLSTATE 08, connection exception', sql('08006'), 'down'],
    ['SQLSTATE 40, serialisation failure', sql('40001'), 'transient'],
    ['SQLSTATE 40, deadlock', sql('40P01'), 'transient'],
    ['SQLSTATE 53, too many connections', sql('53300'), 'down'],
    ['SQLSTATE 53, a disk that is full', sql('53100'), 'down'],
    ['a limit of one query', sql('53400'), 'transient'],
    ['SQLSTATE 57, shutting down', sql('57P01'), 'down'],
    ['a statement that took too long', sql('57014'), 'transient'],
    ['a transaction that took too long', sql('25P04'), 'down'],
    ['a transaction that was idle too long', sql('25P03'), 'down'],
    ['a lock not had', sql('55P03'), 'transient'],
    ['an object in use', sql('55006'), 'transient'],
    ['a statement too complex', sql('54001'), 'transient'],
    ['a server that became read-only', sql('25006'), 'down'],
    ['SQLSTATE 23, a unique constraint', sql('23505'), 'permanent'],
    ['SQLSTATE 23, a check', sql('23514'), 'permanent'],
    ['a partition that is missing', error({ code: '23514', severity: 'ERROR', routine: 'ExecFindPartition' }), 'down'],
    ['a parent that may come later', sql('23503'), 'transient'],
    ['a column that got NOT NULL', sql('23502'), 'transient'],
    ['SQLSTATE 22, a value', sql('22P02'), 'permanent'],
    ['a value an enum does not have yet', error({ code: '22P02', severity: 'ERROR', routine: 'enum_in' }), 'transient'],
    ['SQLSTATE 42, a missing table', sql('42P01'), 'down'],
    ['SQLSTATE 42, a missing column', sql('42703'), 'down'],
    ['SQLSTATE 42, a missing grant', sql('42501'), 'down'],
    ['a cached plan after a migration', sql('0A000'), 'down'],
    ['a wrong password', sql('28P01'), 'down'],
    ['a disk that cannot be read', sql('58030'), 'down'],
    ['an internal error', sql('XX000'), 'down'],
    ['no transaction ids left', error({ code: '54000', severity: 'ERROR', routine: 'GetNewTransactionId' }), 'down'],
    ['an exception of PL/pgSQL', sql('P0001'), 'transient'],
    ['a class nobody has listed', sql('99000'), 'transient'],
    ['five capitals that are no SQLSTATE', error({ code: 'EBUSY' }), 'transient'],
    ['Redis LOADING', error({}, 'LOADING Redis is loading the dataset in memory'), 'down'],
    ['Redis CLUSTERDOWN', error({}, 'CLUSTERDOWN The cluster is down'), 'down'],
    ['Redis without memory', error({}, "OOM command not allowed when used memory > 'maxmemory'."), 'down'],
    ['Redis TRYAGAIN', error({}, 'TRYAGAIN Multiple keys request during rehashing of slot'), 'down'],
    ['gRPC deadline exceeded', error({ code: 4 }), 'transient'],
    ['gRPC resource exhausted', error({ code: 8 }), 'transient'],
    ['gRPC unavailable', error({ code: 14, details: 'no connection' }), 'down'],
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

  test.each<[string, unknown, ErrorKind]>([
    ['no answer in time', new DOMException('late', 'TimeoutError'), 'down'],
    ['fetch that waits for headers', caused(error({ code: 'UND_ERR_HEADERS_TIMEOUT' })), 'down'],
    ['a refused connection', caused(error({ code: 'ECONNREFUSED' })), 'down'],
    ['RetryLater', new RetryLater('1s'), 'transient'],
    ['Reject', new Reject('no'), 'permanent'],
    ['an error nobody knows', new Error('?'), 'transient'],
  ])('of a publisher: %s', (_, given, kind) => {
    expect(classifyPublish(given)).toBe(kind)
  })

  test('a transient cause is found before the default says so, past a permanent one further in', () => {
    expect(classify(caused(new RetryLater('1s', 'wait', { cause: new Reject('no') })))).toBe('transient')
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

describe('a message', () => {
  test('ends with the code, once, so that it can be searched for', () => {
    const error = new WaybillError('NOT_MIGRATED', 'table "outbox" does not exist')
    expect(error.message).toBe('table "outbox" does not exist [NOT_MIGRATED]')
    expect(new WaybillError(error.code, error.message).message).toBe(error.message)
    expect(new Unavailable('the stream is gone', { code: 'WRONG_STREAM' }).message).toBe(
      'the stream is gone [WRONG_STREAM]',
    )
    expect(asError(new Proxy(error, {}))).toMatchObject({ code: error.code, message: error.message })
  })

  test('that is stored or logged has it only in front', () => {
    const inner = new WaybillError('POOL_TOO_SMALL', 'the pool has 1 connection')
    expect(errorSummary(inner)).toBe('WaybillError [POOL_TOO_SMALL]: the pool has 1 connection')
    const outer = new WaybillError('NOT_STARTED', `it cannot start: ${inner.message}`, { cause: inner })
    expect(errorSummary(outer)).toBe(
      'WaybillError [NOT_STARTED]: it cannot start: the pool has 1 connection [POOL_TOO_SMALL]',
    )
  })
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
    ['a short object', new Error('refused {"card":"4111"}'), 'Error: refused …'],
    ['a list', new Error('refused [4111]'), 'Error: refused …'],
    ['a Reject with an object', new Reject('refused {"card":"4111"}'), 'Reject [REJECTED]: refused …'],
    [
      'what one of ours advises behind a name',
      new WaybillError(
        'UNROUTABLE',
        `no queue takes "order.placed" in exchange "shop": bind one, ${'or '.repeat(25)}declare it`,
      ),
      `WaybillError [UNROUTABLE]: no queue takes "order.placed" in exchange "shop": bind one, ${'or '.repeat(25)}declare it`,
    ],
    [
      'a long name in one of ours',
      new WaybillError('X', `no "${'4111'.repeat(20)}" here`),
      'WaybillError [X]: no "…" here',
    ],
    [
      'a long name that holds quotes',
      new WaybillError('X', `no ${JSON.stringify(`a"${'4111'.repeat(20)}`)} here`),
      'WaybillError [X]: no "…" here',
    ],
    ['quotes in a Reject', new Reject(`a "b" ${'4111'.repeat(20)}`), 'Reject [REJECTED]: a "b"…"'],
    ['a short quoted word', new Error('refused "4111" twice'), 'Error: refused "…" twice'],
    ['a word in single quotes', new Error("refused '4111' twice"), 'Error: refused "…" twice'],
    ['quotes in quotes', new Error('no uuid: "a"4111 secret"b"'), 'Error: no uuid: "…"'],
    ['a quote that is not closed', new Error('refused "4111 secret'), 'Error: refused "…"'],
    ['a quote whose end was cut off', new Error(`a "b" refused "4111 secret${' '.repeat(3000)}"`), 'cut'],
    ['other quotes', new Error('ungültig: »4111« hier'), 'Error: ungültig: "…" hier'],
    ['an apostrophe', new Error("can't connect, it's away"), "Error: can't connect, it's away"],
    [
      'names of a schema',
      new Error('null value in column "paid" of relation "invoices" violates not-null constraint'),
      'Error: null value in column "paid" of relation "invoices" violates not-null constraint',
    ],
    ['a number where a name should be', new Error('column "4111"'), 'cut'],
    ['a code that is none', error({ code: '4111 secret' }), 'Error: failed'],
    ['a name that is none', error({ name: '{"card":"4111"}' }), 'Error: failed'],
    [
      'the cause',
      new TypeError('fetch failed', { cause: error({ code: 'ECONNREFUSED' }, 'connect ECONNREFUSED 127.0.0.1:9') }),
      'TypeError: fetch failed < Error [ECONNREFUSED]: connect ECONNREFUSED 127.0.0.1:9',
    ],
    [
      'what several addresses said',
      new TypeError('fetch failed', {
        cause: Object.assign(new AggregateError([new Error('connect ECONNREFUSED ::1:9')]), { code: 'ECONNREFUSED' }),
      }),
      'TypeError: fetch failed < AggregateError [ECONNREFUSED] < Error: connect ECONNREFUSED ::1:9',
    ],
    [
      'a cause that is repeated',
      new Unavailable('no answer: Error [X]: away', { cause: error({ code: 'X' }, 'away') }),
      'Unavailable [UNAVAILABLE]: no answer: Error [X]: away',
    ],
    ['what no store can hold', new Error('a\0b\ud800c\u0007'), 'Error: a b\ufffdc'],
  ])('%s', (_, given, expected) => {
    const summary = errorSummary(given)
    if (expected === 'cut') expect(summary).not.toMatch(/4111|secr/)
    else expect(summary).toBe(expected)
  })

  test('is bounded', () => {
    expect(errorSummary(new Error('word '.repeat(1000)))).toHaveLength(MAX_ERROR_LENGTH)
    const caused = new Error('word '.repeat(1000), { cause: new Error('the reason') })
    expect(errorSummary(caused)).toMatch(/… < Error: the reason$/)
    expect(errorSummary(new Error('💥'.repeat(1000)))).not.toMatch(/\p{Cs}/u)
  })

  test.each([
    'connect to postgres://app:hunter2@db/shop failed',
    // Not encoded, as people write them.
    'connect to postgres://app:hun/ter2@db/shop failed',
    'connect to postgres://app:hun?ter2@db/shop failed',
    'connect to amqp://app:hun#ter2@broker/shop failed',
    'two hosts: postgres://app:hunter2@one,app:hunter2@two/shop',
    'HTTPS://app:hunter2@host/',
    // As long as the passwords that clouds give out, and longer than what is read of a message.
    `postgres://app:${'x'.repeat(1000)}ter2@db/shop`,
    `postgres://app:hunter2${'x'.repeat(3000)}@db/shop`,
    'postgres://db/shop?user=app&sslpassword=hunter2&x=1',
    `token=${'x'.repeat(800)}ter2 is refused`,
    'PGPASSWORD=hunter2 psql',
    'DB_PASSWORD=hunter2',
    'client_secret: hunter2',
    'AWS_SECRET_ACCESS_KEY=hunter2',
    'accessToken: hunter2',
    'pass=hunter2',
    'passphrase=hunter2',
    'password="hun ter2, and" more',
    "password: 'hun ter2; and' more",
    'Authorization: Bearer hunter2',
    'x-api-key: hunter2',
    '?X-Amz-Signature=hunter2&x=1',
  ])('holds no password: %s', (text) => {
    for (const error of [new Error(text), new Reject(text), new Error('outer', { cause: new Unavailable(text) })]) {
      expect(errorSummary(error)).not.toMatch(/hun|ter2/)
    }
  })

  test('shows where it could not connect to', () => {
    const text = 'connect to amqp://app:hunter2@broker:5672/shop from http://localhost:8080/x failed'
    expect(errorSummary(new Error(text))).toBe(
      'Error: connect to amqp://…@broker:5672/shop from http://localhost:8080/x failed',
    )
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
