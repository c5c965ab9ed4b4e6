import { Writable } from 'node:stream'
import pino from 'pino'
import { afterEach, describe, expect, test } from 'vitest'
import { event, Reject, TELEMETRY_NAMES, telemetry, Unavailable } from '../../src/core/index.ts'
import { REPORTED } from '../../src/core/stderr.ts'
import { EVENT_LEVELS, LOG_LEVELS, type LogFields, type LogLevel, logTo } from '../../src/observability/index.ts'
import { Router } from '../../src/router/index.ts'
import { billing, everyKind, listSource, OrderPlaced, SECRET } from './support.ts'

let stop = () => {}
afterEach(() => stop())

type Line = { level: LogLevel; text: string; fields: LogFields }

function collect(options?: Parameters<typeof logTo>[1]): Line[] {
  const lines: Line[] = []
  stop = logTo((level, text, fields) => lines.push({ level, text, fields }), options)
  return lines
}

const handled = { flow: 'billing', type: 'order.placed', id: '1', took: 1.23456, attempt: 1, tenant: undefined }

describe('logTo', () => {
  test('every telemetry event has a level, and those that vary name theirs in order', () => {
    expect(Object.keys(EVENT_LEVELS).sort()).toEqual([...TELEMETRY_NAMES].sort())
    for (const level of Object.values(EVENT_LEVELS)) {
      const levels = typeof level === 'string' ? [level] : level.levels
      expect(LOG_LEVELS).toEqual(expect.arrayContaining([...levels]))
      expect([...levels]).toEqual(LOG_LEVELS.filter((known) => levels.includes(known)))
    }
  })

  test('a record has names, ids, counts and times, and nothing that is undefined', () => {
    const lines = collect({ level: 'debug' })
    telemetry['message.handled'].publish({ ...handled, result: 'done', error: undefined })
    expect(lines).toEqual([
      {
        level: 'debug',
        text: 'waybill:message.handled',
        fields: { flow: 'billing', type: 'order.placed', id: '1', tookMs: 1.235, attempt: 1, result: 'done' },
      },
    ])
  })

  test('an error is its summary, and its causes follow', () => {
    const lines = collect()
    const refused = Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' })
    const error = new Unavailable('publishing to shop failed', { cause: refused })
    telemetry['flow.paused'].publish({ flow: 'billing', error, retryIn: 200, failures: 1 })
    expect(lines[0]?.fields).toMatchObject({
      error: 'Unavailable [UNAVAILABLE]: publishing to shop failed',
      cause: 'Error [ECONNREFUSED]: connect ECONNREFUSED',
    })
  })

  test.each<[string, unknown, object]>([
    ['a text', 'card 4111', { error: 'Error: non-error thrown (string)' }],
    ['an error that quotes', new Error('invalid input: "card 4111"'), { error: 'Error: invalid input: "…"' }],
    ['a number', 4111, { error: 'Error: non-error thrown (number)' }],
    ['a Proxy', new Proxy(new Error('4111'), { get: () => expect.fail('read') }), { error: expect.any(String) }],
    ['a getter that throws', getter(), { error: 'Error: its message cannot be read' }],
  ])('what was thrown is never shown as it is: %s', (_, error, fields) => {
    const lines = collect()
    telemetry['flow.paused'].publish({ flow: 'billing', error, retryIn: 200, failures: 1 })
    telemetry['flow.lost'].publish({
      flow: 'billing',
      unsettled: 1,
      reason: error === 'card 4111' ? new Error('x') : error,
    })
    expect(lines[0]?.fields).toMatchObject(fields)
    expect(JSON.stringify(lines)).not.toContain('4111')
  })

  test('a handler that throws nothing at all has an error in its line', async () => {
    const lines = collect({ level: 'debug' })
    const router = new Router('billing').on(OrderPlaced, () => {
      throw undefined
    })
    const consumer = router.consume(listSource([OrderPlaced({ orderId: '1', card: SECRET })]))
    await consumer.runOnce()
    await consumer.stop()
    const line = lines.find(({ text }) => text === 'waybill:message.handled')
    expect(line?.fields).toMatchObject({ result: 'retry', error: 'Error: non-error thrown (undefined)' })
  })

  test.each<[string, Parameters<typeof logTo>[1], string | undefined]>([
    ['shown by default', {}, 'acme'],
    ['shown', { tenant: 'show' }, 'acme'],
    ['hashed, the same each time', { tenant: 'hash' }, '822b33ad87c148a0'],
    ['hidden', { tenant: 'hide' }, undefined],
    ['as a function says', { tenant: (tenant) => `${tenant[0]}…` }, 'a…'],
    [
      'hidden where that throws',
      {
        tenant: () => {
          throw new Error('no key')
        },
      },
      undefined,
    ],
  ])('a tenant is %s', (_, options, expected) => {
    const lines = collect({ level: 'debug', ...options })
    const about = { flow: 'billing', type: 't', id: '1', attempt: 1, tenant: 'acme', topic: 'orders' }
    telemetry['message.dead'].publish({ ...about, reason: 'Error: no' })
    telemetry['message.suspected'].publish({ ...about, error: new Error('no') })
    expect(lines.map(({ fields }) => fields['tenant'])).toEqual([expected, expected])
    expect(lines.map(({ fields }) => fields['topic'])).toEqual(['orders', 'orders'])
  })

  test('the level of an event may depend on it: a stale settlement is a warning, success is not', () => {
    const lines = collect()
    telemetry['message.handled'].publish({ ...handled, result: 'retry', error: new Error('busy') })
    const { took, ...about } = handled
    telemetry['message.retrying'].publish({ ...about, retryIn: took, error: new Error('busy') })
    const counts = { flow: 'billing', done: 1, retry: 0, dead: 0, release: 0, took: 1 }
    telemetry['flow.settled'].publish({ ...counts, stale: 0 })
    telemetry['flow.settled'].publish({ ...counts, stale: 1 })
    expect(lines.map(({ level, text }) => `${level} ${text}`)).toEqual([
      'warn waybill:message.retrying',
      'warn waybill:flow.settled',
    ])
  })

  test('every error and warning, and for what a worker waits, reaches stderr until a logger is given', () => {
    const grave = TELEMETRY_NAMES.filter((name) => {
      const level = EVENT_LEVELS[name]
      return /warn|error/.test(typeof level === 'string' ? level : level.levels.join())
    })
    expect(Object.keys(REPORTED).sort(), 'REPORTED of src/core/stderr.ts').toEqual(grave.sort())
  })

  test('at debug a line has the stack of the error, without its text; above it does not', async () => {
    const few = collect()
    const stopFew = stop
    const all = collect({ level: 'debug' })
    const router = new Router('billing').on(OrderPlaced, function bill({ data }) {
      throw new Error(`the card ${data.card} is refused\n    at ${data.card} (x:1:2)`)
    })
    const consumer = router.consume(listSource([OrderPlaced({ orderId: '1', card: SECRET })]))
    await consumer.runOnce()
    await consumer.stop()
    stopFew()
    const line = (lines: typeof all) => lines.find(({ text }) => text === 'waybill:message.retrying')!.fields
    expect(line(all)['stack']).toMatch(/^at .*bill.*logging\.test\.ts:\d+:\d+/)
    expect(line(few)).not.toHaveProperty('stack')
    expect(JSON.stringify([all, few])).not.toContain('4111')
  })

  const Ordered = event<{ orderId: string }>('order.placed')

  test.each<[string, () => unknown]>([
    ['thrown', () => (undefined as unknown as () => void)()],
    ['as the cause of another', () => Promise.reject(new Error('no invoice', { cause: new TypeError('no customer') }))],
    [
      'behind Promise.all',
      () =>
        Promise.all([
          new Promise(setImmediate).then(async function deep() {
            await undefined
            throw new Error('no')
          }),
        ]),
    ],
    ['and dead at once', () => Promise.reject(new Reject('never'))],
  ])("a line says where in the user's code the error was thrown, and nothing more: %s", async (_, fails) => {
    const lines = collect()
    const router = new Router('billing').on(Ordered, async () => void (await fails()))
    const consumer = router.consume(listSource([Ordered({ orderId: '1' })]))
    await consumer.runOnce()
    await consumer.stop()
    const failed = lines.filter(({ text }) => /message\.(retrying|dead)$/.test(text))
    expect(failed).toHaveLength(1)
    expect(failed[0]!.fields['at']).toMatch(/^\/.*logging\.test\.ts:\d+:\d+$/)
    expect(failed[0]!.fields).not.toHaveProperty('stack')
  })

  test('a reason that is a text is not said twice', () => {
    const lines = collect()
    const about = { flow: 'billing', type: 't', id: '1', attempt: 25, tenant: undefined }
    telemetry['message.dead'].publish({ ...about, reason: '25 attempts: Error: no', error: new Error('no') })
    expect(lines[0]?.fields).toMatchObject({
      reason: '25 attempts: Error: no',
      at: expect.stringContaining('.test.ts'),
    })
    expect(lines[0]?.fields).not.toHaveProperty('error')
  })

  test.each([
    ["a library's", 'at send (/app/node_modules/pg/lib/client.js:10:5)'],
    ["node's", 'at node:internal/process/task_queues:95:5'],
    ['ours', `at call (${new URL('../../src/flow/calls.ts', import.meta.url)}:1:1)`],
    ['no place', 'at Array.map (<anonymous>)'],
  ])('where every frame is %s, there is no place to tell', (_, frame) => {
    const lines = collect()
    const error = new Error('no')
    error.stack = `Error: no\n    ${frame}`
    telemetry['flow.paused'].publish({ flow: 'billing', error, retryIn: 200, failures: 1 })
    expect(lines[0]?.fields).not.toHaveProperty('at')
  })

  test('what can never be written is not listened to, so that nobody pays for it', () => {
    stop = logTo(console, { level: 'error' })
    expect(telemetry['message.handled'].active).toBe(false)
    expect(telemetry['message.dead'].active).toBe(true)
    stop()
    expect(TELEMETRY_NAMES.filter((name) => telemetry[name].active)).toEqual([])
  })

  test('flows: only those named; what belongs to no flow is always written', () => {
    const lines = collect({ flows: ['billing'] })
    telemetry['flow.opened'].publish({ flow: 'billing' })
    telemetry['flow.opened'].publish({ flow: 'shipping' })
    telemetry['worker.started'].publish({ worker: 'shipping' })
    telemetry['router.unknown_type'].publish({ router: 'shipping', type: 't', id: '1', policy: 'nack' })
    telemetry.warning.publish({ where: 'redis', message: 'eviction is on' })
    expect(lines.map(({ text }) => text)).toEqual(['waybill:flow.opened', 'waybill:warning'])
  })

  test('console gets one line, which no id can break', () => {
    const lines: string[] = []
    const log = (text: string) => lines.push(text)
    stop = logTo({ log, debug: log, info: log, warn: log, error: log })
    telemetry['router.unknown_type'].publish({
      router: 'billing',
      type: 'a b',
      id: '1\nwaybill:forged',
      policy: 'nack',
    })
    expect(lines).toEqual(['waybill:router.unknown_type router=billing type="a b" id="1�waybill:forged" policy=nack'])
  })

  test('an id of any length takes little room', () => {
    const lines = collect()
    telemetry['router.unknown_type'].publish({ router: 'r', type: 't', id: 'x'.repeat(1e6), policy: 'nack' })
    expect(String(lines[0]?.fields['id']).length).toBe(200)
  })

  test('a warning is not cut off before it says what to do', () => {
    const lines = collect()
    const message = `${'the pool has 1 connection '.repeat(10)}; give it max: 3`
    telemetry.warning.publish({ where: 'sagas', message })
    expect(lines[0]?.fields['message']).toBe(message)
  })

  test('a logger whose promise rejects harms nobody', async () => {
    const unhandled: unknown[] = []
    const onUnhandled = (reason: unknown) => unhandled.push(reason)
    process.on('unhandledRejection', onUnhandled)
    stop = logTo((async () => Promise.reject(new Error('disk full'))) as never)
    telemetry['worker.started'].publish({ worker: 'w' })
    await new Promise((resolve) => setImmediate(resolve))
    process.off('unhandledRejection', onUnhandled)
    expect(unhandled).toEqual([])
  })

  test('a logger that throws harms nobody', () => {
    stop = logTo(() => {
      throw new Error('disk full')
    })
    telemetry['worker.started'].publish({ worker: 'w' })
  })

  test('what is no logger, and an unknown option, are refused', () => {
    // @ts-expect-error no debug
    expect(() => logTo({ info: () => {} })).toThrow('the logger has no debug()')
    expect(() => logTo(console, { tenant: 'hiden' as never })).toThrow('did you mean "hide"?')
    expect(() => logTo(console, { level: 'wran' as never })).toThrow('did you mean "warn"?')
    expect(() => logTo(console, { flow: [] } as never)).toThrow('did you mean "flows"?')
    expect(() => logTo(console, { flows: 'billing' as never })).toThrow('flows: "billing" is not allowed')
  })
})

test('with pino: records with fields, and no payload in any of them, whatever happens to a message', async () => {
  let output = ''
  const stream = new Writable({
    write(chunk, _, done) {
      output += chunk
      done()
    },
  })
  stop = logTo(pino({ level: 'debug' }, stream), { level: 'debug' })
  const sent: unknown[] = []
  const source = listSource(everyKind())
  const consumer = billing().consume(source, { to: (message) => sent.push(message) })
  await consumer.runOnce()
  await consumer.stop()
  expect(source.settled.sort()).toEqual([
    'later retry',
    'malformed dead',
    'ok done',
    'permanent dead',
    'quote retry',
    'transient retry',
    'unknown done',
  ])
  const records = output
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  expect(records).toContainEqual(
    expect.objectContaining({
      level: 50,
      msg: 'waybill:message.dead',
      flow: 'billing',
      type: 'order.placed',
      id: 'permanent',
      tenant: 'acme',
      attempt: 1,
      reason: 'Reject [REJECTED]: the card is refused',
    }),
  )
  const seen = new Set(records.map(({ msg }) => msg))
  for (const name of ['flow.opened', 'message.handled', 'router.unknown_type', 'flow.settled', 'worker.stopped'])
    expect(seen).toContain(`waybill:${name}`)
  expect(JSON.stringify(sent)).toContain(SECRET)
  expect(output).not.toContain('4111')
})

function getter(): Error {
  return Object.defineProperty(new Error('4111'), 'message', {
    get() {
      throw new Error('not for you')
    },
  })
}
