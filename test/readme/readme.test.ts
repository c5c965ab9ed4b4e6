import { readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { freePort } from '../../scripts/services/ports.ts'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { runScript } from '../../src/testing/index.ts'
import { dropQueues } from '../brokers/rabbitmq/support.ts'
import { ioredis } from '../brokers/redis-streams/support.ts'
import { message, NEVER } from '../brokers/support.ts'
import { admin, eventually, standalone } from '../support/redis-topologies.ts'
import { describeWith, freshDatabase, service } from '../support/services.ts'
import { build, node, read, root, samples, temporaryFolder } from './support.ts'

/** Guides by task whose samples print what stands below them, without a server. */
const PRINTING = ['events', 'handlers', 'inbox', 'errors', 'order', 'delays', 'testing', 'projections']
/** The other guides by task. */
const TASKS = [
  ...PRINTING,
  ...['service', 'outbox', 'dead-letters', 'routing', 'stuck', 'upgrading', 'sizing', 'status', 'watching', 'settings'],
  ...['sagas', 'saga-requests', 'saga-operations', 'broker-projections', 'read-your-writes', 'pipes', 'engine'],
]
/** Guides by server whose samples are run too. */
const SERVED = [
  ...['postgres', 'postgres-setup', 'postgres-failures', 'postgres-pool', 'postgres-operations'],
  ...['redis', 'redis-outbox', 'redis-due', 'redis-streams', 'rabbitmq', 'nats', 'kafka', 'http'],
]
/** Samples of those that are not run, and why. */
const NOT_RUN: Readonly<Record<string, string>> = { 'postgres-operations 5': 'reads a folder of the reader’s own' }
/** Guides for those who write code of ours, or beside ours: a sample of tests, and two that are run elsewhere. */
const FOR_AUTHORS = ['test-servers', 'write-an-adapter', 'write-a-store']
const PRINTS = /```ts\n((?:(?!```).)*)```\n\n```\n(.*?)```/gs
/** One file in parts: whoever writes an adapter or a store types it along. */
const LONGER: Readonly<Record<string, true>> = { 'write-an-adapter.md': true, 'write-a-store.md': true }
const SHOP = `shop-${process.pid}`
const folder = temporaryFolder()
afterAll(() => rmSync(folder, { recursive: true }))

// Samples import the package by its name, as users do, and so what was built.
beforeAll(build, 170_000)

test('the first sample prints what stands below it', { timeout: 170_000 }, async () => {
  const [, code, output] = /```ts\n(.*?)```\n\n```\n(.*?)```/s.exec(read('README.md'))!
  writeFileSync(join(folder, 'first.mts'), code!)
  expect(await node('--import', 'tsx', join(folder, 'first.mts'))).toEqual({ code: 0, output, errors: '' })
})

test.each(PRINTING)('the samples of %s print what stands below them', { timeout: 170_000 }, async (page) => {
  const printing = [...read(`docs/guides/${page}.md`).matchAll(PRINTS)]
  expect(printing.length).toBeGreaterThan(0)
  for (const [index, [, code, output]] of printing.entries()) {
    const file = join(folder, `${page}-${index}.mts`)
    writeFileSync(file, code!)
    // A sample may fail on purpose, and is told so.
    const errors = expect.stringMatching(/^(waybill:message\.retrying .*\n)*$/)
    expect(await node('--import', 'tsx', file)).toEqual({ code: 0, output, errors })
  }
})

test('every guide is by task or by server', () => {
  const guides = readdirSync(join(root, 'docs/guides')).map((name) => name.slice(0, -3))
  expect([...TASKS, ...SERVED, ...FOR_AUTHORS, 'README'].sort()).toEqual(guides.sort())
})

test('every sample of a guide by task or by server is run', () => {
  const names = ['readme', 'task-samples', 'saga-samples', 'other-samples', 'server-samples', 'broker-samples']
  const tests = names.map((name) => read(`test/readme/${name}.test.ts`))
  for (const page of [...TASKS, ...SERVED]) {
    const printing = [...read(`docs/guides/${page}.md`).matchAll(PRINTS)].map(([, code]) => code)
    const run = samples(`docs/guides/${page}.md`).map((code, index) => {
      if (PRINTING.includes(page) && printing.includes(code)) return 'prints'
      const [played, first] = [
        new RegExp(`play(Until)?\\('${page}', ${index + 1}\\b`),
        `samples('docs/guides/${page}.md')`,
      ]
      if (`${page} ${index + 1}` in NOT_RUN) return true
      return tests.some((text) => played.test(text) || (index === 0 && text.includes(first)))
    })
    expect({ page, run }).toEqual({ page, run: run.map((one) => one || true) })
  }
})

test('no guide is longer than 120 lines, nor the README than 220', () => {
  const guides = readdirSync(join(root, 'docs/guides')).filter((name) => !(name in LONGER))
  for (const page of guides) expect(read(`docs/guides/${page}`).split('\n').length, page).toBeLessThanOrEqual(121)
  expect(read('README.md').split('\n').length).toBeLessThanOrEqual(221)
})

test('the saga sample prints what stands below it', { timeout: 170_000 }, async () => {
  const section = read('README.md').split('### A saga')[1]!
  const [, code, output] = /```ts\n(.*?)```\n\n```\n(.*?)```/s.exec(section)!
  writeFileSync(join(folder, 'saga.mts'), code!)
  expect(await node('--import', 'tsx', join(folder, 'saga.mts'))).toEqual({ code: 0, output, errors: '' })
})

test('the sample of watching answers Prometheus', { timeout: 120_000 }, async () => {
  const [code] = samples('docs/guides/watching.md')
  const port = await freePort()
  writeFileSync(join(folder, 'watching.mts'), code!.replace('9464', String(port)))
  const child = runScript({ script: join(folder, 'watching.mts') })
  try {
    const text = await eventually('it is scraped', async () => {
      const response = await fetch(`http://127.0.0.1:${port}/metrics`).catch(() => undefined)
      return response?.text()
    })
    expect(text).toContain('# TYPE outbox_dispatch_total counter')
  } finally {
    child.kill('SIGKILL')
    await child.finished
  }
})

describeWith(['redis'], 'the sample on Redis alone', () => {
  test('handles an order, hands on what it returned, and ends at a SIGTERM', { timeout: 120_000 }, async () => {
    const server = await standalone()
    const [code] = samples('docs/guides/redis.md')
    writeFileSync(join(folder, 'redis.mts'), code!)
    const child = runScript({ script: join(folder, 'redis.mts'), env: { REDIS_URL: server.url } })
    const streams = redisStreams({ client: ioredis(server.url) })
    await streams.publisher().publish([message('{"orderId":"A-1","total":30}', { type: 'order.placed' })], NEVER)
    await eventually('the invoice is sent', async () => (await admin(server).xlen('invoice.sent')) === 1)
    expect(await admin(server).get('{billing}:revenue')).toBe('30')
    child.kill('SIGTERM')
    expect(await child.finished).toMatchObject({ code: 0 })
    await streams.close()
  })
})

describeWith(['postgres', 'rabbitmq'], 'the service of the guide', () => {
  test('takes an order, sends its invoice through RabbitMQ, and ends at a SIGTERM', { timeout: 120_000 }, async () => {
    const { url, drop } = await freshDatabase()
    const [code] = samples('docs/guides/service.md')
    // A queue of its own: the server is shared.
    const own = code!.replaceAll(`'shop'`, `'${SHOP}'`).replaceAll(`queue: 'billing'`, `queue: '${SHOP}.billing'`)
    writeFileSync(join(folder, 'service.mts'), own)
    const port = await freePort()
    const env = { DATABASE_URL: url, RABBITMQ_URL: service('rabbitmq').url, PORT: String(port) }
    const child = runScript({ script: join(folder, 'service.mts'), env })
    const pool = new pg.Pool({ connectionString: url })
    try {
      const id = await eventually('an order is taken', async () => {
        const response = await fetch(`http://127.0.0.1:${port}`, { method: 'POST' }).catch(() => undefined)
        return response?.status === 201 ? response.text() : false
      })
      await eventually('its invoice is written', async () => {
        const { rows } = await pool.query('SELECT total FROM invoices WHERE order_id = $1', [id])
        return rows.length === 1 && rows[0].total === 30
      })
      child.kill('SIGTERM')
      expect(await child.finished).toMatchObject({ code: 0 })
    } finally {
      child.kill('SIGKILL')
      await pool.end()
      await dropQueues(service('rabbitmq').url, `${SHOP}.billing`)
      await drop()
    }
  })
})

describe('what docs/options.md says', () => {
  const table = (title: string) => read('docs/options.md').split(title)[1]!.split('\n\n`')[0]!
  const named = (text: string) =>
    [...text.matchAll(/^\| (.*?) \|/gm)].flatMap(([, cell]) =>
      [...cell!.matchAll(/`([\w.]+)`/g)].map(([, name]) => name!),
    )

  test('every option of postgres() is there', () => {
    const options = table('`postgres({ pool, … })`').split('`enqueue(tx')[0]!
    const [, own] = /checkOptions\('postgres', options, \{(.*?)\}/s.exec(read('src/postgres/store.ts'))!
    const outbox = /const OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/postgres/outbox.ts'))![1]!
    const schema = /OUTBOX_OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/postgres/migrate-tables.ts'))![1]!
    const inbox = /checkOptions\('inbox', options, \{(.*?)\}/.exec(read('src/postgres/inbox.ts'))![1]!
    const names = (text: string, prefix: string) =>
      [...text.matchAll(/(\w+): true/g)].map(([, name]) => `${prefix}.${name}`)
    const plain = [...own!.matchAll(/(\w+): true/g)].map(([, name]) => name!)
    const first = plain.filter((name) => !['pool', 'outbox', 'inbox'].includes(name))
    const known = [...first, ...names(outbox, 'outbox'), ...names(schema, 'outbox'), ...names(inbox, 'inbox')]
    expect(named(options).sort()).toEqual(known.sort())
  })

  test('every option of a consumer is there, but for those of tests, and deadKey: its source decides that', () => {
    const [, list] = /const FLOW_SETTINGS: [^=]* = \{(.*?)\}/s.exec(read('src/flow/flow-options.ts'))!
    const parts: Record<string, string[]> = {
      retry: ['retry.attempts', 'retry.backoff', 'retry.classify'],
      buffer: ['buffer.count', 'buffer.bytes'],
    }
    const settings = [...list!.matchAll(/(\w+): true/g)].map(([, name]) => name!)
    const known = settings.filter((name) => !['clock', 'random'].includes(name)).flatMap((name) => parts[name] ?? name)
    expect(named(table('`router.consume(source, { … })`')).sort()).toEqual(['name', 'to', 'ack', ...known].sort())
  })

  test('every option of a relay is there, but for those of tests', () => {
    const [, list] = /const RELAY_OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/outbox/relay-options.ts'))!
    const known = [...list!.matchAll(/(\w+): true/g)].flatMap(([, name]) =>
      name === 'retry' ? ['attempts', 'backoff', 'deadKey'].map((option) => `retry.${option}`) : [name!],
    )
    const plain = ['from', 'to', 'name', 'clock', 'random']
    expect(named(table('`new Relay({ from, to, … })`')).sort()).toEqual(
      known.filter((name) => !plain.includes(name)).sort(),
    )
  })
})

test('what the claims name exists', () => {
  const claims = read('docs/promises.md').split('| claim | shown by |')[1]!.split('\n\n')[0]!
  expect(claims.match(/\(\.\.\/test\/[\w/.-]+\.test\.ts\)/g)!.length).toBeGreaterThan(12)
})
