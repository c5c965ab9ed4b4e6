import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { runScript } from '../../src/testing/index.ts'
import { ioredis } from '../brokers/redis-streams/support.ts'
import { message, NEVER } from '../brokers/support.ts'
import { admin, eventually, standalone } from '../support/redis-topologies.ts'
import { describeWith } from '../support/services.ts'
import { node, read, samples, temporaryFolder } from './support.ts'

const PAGES = [
  'README.md',
  'docs/guides/postgres.md',
  'docs/guides/pipes.md',
  'docs/guides/engine.md',
  'docs/guides/sagas.md',
]
const folder = temporaryFolder()
afterAll(() => rmSync(folder, { recursive: true }))

// Samples import the package by its name, as users do, and so what was built.
beforeAll(() => node('node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'), 170_000)

test('the first sample prints what stands below it', { timeout: 170_000 }, async () => {
  const [, code, output] = /```ts\n(.*?)```\n\n```\n(.*?)```/s.exec(read('README.md'))!
  writeFileSync(join(folder, 'first.mts'), code!)
  expect(await node('--import', 'tsx', join(folder, 'first.mts'))).toEqual({ code: 0, output, errors: '' })
})

test('the saga sample prints what stands below it', { timeout: 170_000 }, async () => {
  const section = read('README.md').split('### A saga')[1]!
  const [, code, output] = /```ts\n(.*?)```\n\n```\n(.*?)```/s.exec(section)!
  writeFileSync(join(folder, 'saga.mts'), code!)
  expect(await node('--import', 'tsx', join(folder, 'saga.mts'))).toEqual({ code: 0, output, errors: '' })
})

describeWith(['redis'], 'the sample on Redis alone', () => {
  test('handles an order, hands on what it returned, and ends at a SIGTERM', { timeout: 120_000 }, async () => {
    const server = await standalone()
    const [code] = samples('README.md').filter((sample) => sample.includes('redisStreams({ client })'))
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

/** What samples use of those before them. */
const BEFORE: Record<string, string> = {
  pool: "import type pg from 'pg'\ndeclare const pool: pg.Pool",
  db: "import type { Postgres } from 'waybill/postgres'\nimport type { PoolClient } from 'pg'\ndeclare const db: Postgres<PoolClient>",
  OrderPlaced:
    "import { event as define } from 'waybill'\nconst OrderPlaced = define<{ orderId: string; total: number }>('order.placed')",
  consumer: "import type { Consumer } from 'waybill'\ndeclare const consumer: Consumer",
  relay: "import type { Relay } from 'waybill'\ndeclare const relay: Relay",
  broker: "import type { Publisher } from 'waybill'\ndeclare const broker: Publisher",
  admin: "import type { OutboxAdmin } from 'waybill'\ndeclare const admin: OutboxAdmin",
  client: "import type { PoolClient as Client } from 'pg'\ndeclare const client: Client",
  stock:
    'declare const stock: { reserve(order: object, key: string): Promise<number>; release(key: string): Promise<void> }',
  pay: 'declare const pay: { charge(total: number, key: string): Promise<object>; refund(...keys: string[]): Promise<void>; find(key: string): Promise<object | undefined> }',
  confirm: 'declare function confirm(tx: object, id: string): Promise<void>',
  reopen: 'declare function reopen(tx: object, id: string): Promise<void>',
  finish: 'declare function finish(tx: object, id: string, status: string): Promise<void>',
  Services: 'declare class Services { mustAddUp(status: string): void }',
  define: "declare function define(services: object): import('waybill/saga').AnySaga",
  fulfilment: "declare const fulfilment: import('waybill/saga').AnySaga",
  url: 'declare const url: string',
  id: 'declare const id: string',
  since: 'declare const since: Date',
  until: 'declare const until: Date',
}

describe('every sample is right by its types', () => {
  test.each(PAGES)('of %s', { timeout: 170_000 }, async (page) => {
    const files = samples(page).map((code, index) => {
      const missing = Object.keys(BEFORE).filter((name) => {
        const used = new RegExp(`(?<![.\\w'])${name}(?![\\w':])`).test(code)
        const made = new RegExp(`(const|let|function|class) \\{? ?${name}\\b|import .*\\b${name}\\b`).test(code)
        return used && !made
      })
      const file = join(folder, `${page.replace(/\W/g, '-')}-${index}.mts`)
      writeFileSync(file, `${missing.map((name) => BEFORE[name]).join('\n')}\n${code}\nexport {}\n`)
      return file
    })
    const settings = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'nodenext', '--target', 'es2022']
    const checked = await node('node_modules/typescript/bin/tsc', ...settings, '--types', 'node', ...files)
    expect(checked.output).toBe('')
  })
})

describe('what the README says of options', () => {
  const table = (title: string) => read('README.md').split(title)[1]!.split('\n\n`')[0]!
  const named = (text: string) =>
    [...text.matchAll(/^\| (.*?) \|/gm)].flatMap(([, cell]) =>
      [...cell!.matchAll(/`([\w.]+)`/g)].map(([, name]) => name!),
    )

  test('every option of postgres() is there', () => {
    const options = table('`postgres({ pool, outbox, inbox, statementTimeout })`').split('`enqueue(tx')[0]!
    const outbox = /const OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/postgres/outbox.ts'))![1]!
    const schema = /OUTBOX_OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/postgres/migrate-tables.ts'))![1]!
    const inbox = /checkOptions\('inbox', options, \{(.*?)\}/.exec(read('src/postgres/inbox.ts'))![1]!
    const names = (text: string, prefix: string) =>
      [...text.matchAll(/(\w+): true/g)].map(([, name]) => `${prefix}.${name}`)
    const known = ['statementTimeout', ...names(outbox, 'outbox'), ...names(schema, 'outbox'), ...names(inbox, 'inbox')]
    expect(named(options).sort()).toEqual(known.sort())
  })

  test('every option of a relay is there, but for those of tests', () => {
    const [, list] = /const RELAY_OPTIONS: [^=]* = \{(.*?)\}/s.exec(read('src/outbox/relay.ts'))!
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
  const claims = read('README.md').split('| claim | shown by |')[1]!.split('\n\n')[0]!
  expect(claims.match(/\(test\/[\w/.-]+\.test\.ts\)/g)!.length).toBeGreaterThan(12)
})
