import { describe, expect, test } from 'vitest'
import { findViolations } from '../../scripts/check/boundaries.ts'

/** The problem of one file with one import, or undefined when it is allowed. */
function judge(path: string, text: string): string | undefined {
  const violations = findViolations([{ path, text }])
  expect(violations.length).toBeLessThanOrEqual(1)
  return violations[0]?.problem
}

describe('arrows go down only', () => {
  test.each([
    ['src/core/message.ts', "import { Flow } from '../flow/flow.ts'", 'core may not import flow'],
    ['src/flow/flow.ts', "import { Router } from '../router/router.ts'", 'flow may not import router'],
    ['src/router/router.ts', "import { Relay } from '../outbox/relay.ts'", 'router may not import outbox'],
    ['src/drivers/sql/pg.ts', "import { Flow } from '../../flow/flow.ts'", 'drivers may not import flow'],
    ['src/outbox/relay.ts', "import { x } from '../postgres/index.ts'", 'outbox may not import postgres'],
    ['src/outbox/relay.ts', "import { x } from '../inbox/store.ts'", 'outbox may not import inbox'],
    ['src/brokers/nats/index.ts', "import { x } from '../../router/router.ts'", 'brokers may not import router'],
    ['src/postgres/index.ts', "import { x } from '../redis/index.ts'", 'postgres may not import redis'],
    ['src/memory/index.ts', "import { x } from '../postgres/index.ts'", 'memory may not import postgres'],
    ['src/redis/index.ts', "import { x } from '../brokers/redis-streams/index.ts'", 'redis may not import brokers'],
    ['src/saga/saga.ts', "import { x } from '../postgres/saga.ts'", 'saga may not import postgres'],
    [
      'src/projection/projector.ts',
      "import { x } from '../brokers/nats/index.ts'",
      'projection may not import brokers',
    ],
    ['src/observability/metrics.ts', "import { x } from '../flow/flow.ts'", 'may import only types from flow'],
    ['src/testing/clock.ts', "import { x } from '../postgres/index.ts'", 'testing may not import postgres'],
    ['src/testing/clock.ts', "import type { Pg } from '../drivers/pg.ts'", 'testing may not import drivers'],
    ['src/dashboard/server.ts', "import { x } from '../redis/index.ts'", 'dashboard may not import redis'],
    ['src/cli/relay.ts', "const x = await import('../postgres/index.ts')", 'cli may not import postgres'],
    ['src/index.ts', "export * from './postgres/index.ts'", 'index.ts may not import postgres'],
    ['src/brokers/nats/index.ts', "import { x } from '../kafka/index.ts'", 'a broker never imports another'],
    ['src/extras/index.ts', "import { x } from '../core/index.ts'", 'src/extras is not in the table'],
  ])('%s: %s', (path, text, problem) => {
    expect(judge(path, text)).toContain(problem)
  })

  test.each([
    ['src/core/message.ts', "import { x } from './errors.ts'"],
    ['src/flow/flow.ts', "import { x } from '../core/index.ts'"],
    ['src/router/router.ts', "import { x } from '../flow/flow.ts'"],
    ['src/postgres/outbox.ts', "import { x } from '../outbox/store.ts'"],
    ['src/brokers/nats/publisher.ts', "import { x } from './connection.ts'"],
    ['src/brokers/redis-streams/index.ts', "import type { Redis } from '../../drivers/redis.ts'"],
    ['src/saga/saga.ts', "import { x } from '../router/router.ts'"],
    ['src/observability/metrics.ts', "import type { Flow } from '../flow/flow.ts'"],
    ['src/observability/metrics.ts', "import { events } from '../core/telemetry.ts'"],
    ['src/cli/load.ts', "const x = await import('../postgres/index.ts')"],
    ['src/cli/load/stores.ts', "const x = await import('../../brokers/nats/index.ts')"],
    ['src/index.ts', "export { Router } from './router/router.ts'"],
  ])('%s: %s is allowed', (path, text) => {
    expect(judge(path, text)).toBeUndefined()
  })
})

describe('every form of import is seen', () => {
  test.each([
    "import '../flow/flow.ts'",
    "import flow from '../flow/flow.ts'",
    "import type { Flow } from '../flow/flow.ts'",
    "import { type Flow } from '../flow/flow.ts'",
    "import * as flow from '../flow/flow.ts'",
    "import flow = require('../flow/flow.ts')",
    "export * from '../flow/flow.ts'",
    "export * as flow from '../flow/flow.ts'",
    "export { Flow } from '../flow/flow.ts'",
    "export type { Flow } from '../flow/flow.ts'",
    "const flow = await import('../flow/flow.ts')",
    'const flow = await import(`../flow/flow.ts`)',
    "const flow = require('../flow/flow.ts')",
    "let flow: import('../flow/flow.ts').Flow",
    "let flow: typeof import('../flow/flow.ts')",
    "function f() {\n  return () => import('../flow/flow.ts')\n}",
  ])('%s', (text) => {
    expect(judge('src/core/message.ts', text)).toContain('core may not import flow')
  })

  test('text that only looks like an import is none', () => {
    const text = "// import '../flow/flow.ts'\nconst text = `import x from '../flow/flow.ts'`\n"
    expect(judge('src/core/message.ts', text)).toBeUndefined()
  })

  test('inline type imports load the module, so they are not type-only', () => {
    expect(judge('src/observability/x.ts', "import { type Flow } from '../flow/flow.ts'")).toContain('only types')
  })

  test('the line is that of the import', () => {
    const text = "import './errors.ts'\n\n/** why */\nimport { x } from '../flow/flow.ts'\n"
    expect(findViolations([{ path: 'src/core/message.ts', text }])).toMatchObject([{ line: 4 }])
  })
})

describe('built-ins and packages', () => {
  test('core has three built-ins, the others any', () => {
    expect(judge('src/core/id.ts', "import { randomUUID } from 'node:crypto'")).toBeUndefined()
    expect(judge('src/core/id.ts', "import { channel } from 'node:diagnostics_channel'")).toBeUndefined()
    expect(judge('src/core/id.ts', "import { AsyncLocalStorage } from 'node:async_hooks'")).toBeUndefined()
    expect(judge('src/core/id.ts', "import { readFile } from 'node:fs/promises'")).toContain('core/ imports node:fs')
    expect(judge('src/testing/crash.ts', "import { spawn } from 'node:child_process'")).toBeUndefined()
  })

  test.each([
    "import pg from 'pg'",
    "import type { Pool } from 'pg'",
    "const pg = await import('pg')",
    "let pool: import('pg').Pool",
    "import { x } from 'pg/lib/x.js'",
    '/// <reference types="pg" />',
  ])('a package that no table lists is allowed nowhere: %s', (text) => {
    expect(judge('src/postgres/index.ts', text)).toContain('imports the package pg, which is allowed nowhere')
  })

  test('a scoped package is named whole', () => {
    expect(judge('src/brokers/nats/index.ts', "import { x } from '@nats-io/jetstream/sub'")).toContain(
      'the package @nats-io/jetstream,',
    )
  })

  test('a computed import hides its target', () => {
    expect(judge('src/flow/flow.ts', 'await import(name)')).toContain('computed')
    expect(judge('src/cli/load.ts', 'await import(name)')).toBeUndefined()
  })

  test('src imports neither itself by name nor anything outside', () => {
    expect(judge('src/flow/flow.ts', "import { x } from 'waybill'")).toContain('by its own name')
    expect(judge('src/flow/flow.ts', "import { x } from '../../test/support.ts'")).toContain('outside src/')
  })
})

describe('bench/ and examples/ stand where a user stands', () => {
  test.each([
    ['bench/flow.ts', "import { Flow } from '../src/flow/flow.ts'"],
    ['bench/peers/run.ts', "import { Flow } from '../../src/index.ts'"],
    ['examples/01-first.ts', "const waybill = await import('../src/index.ts')"],
    ['examples/01-first.ts', "import type { Flow } from '../dist/index.js'"],
  ])('%s: %s', (path, text) => {
    expect(judge(path, text)).toContain('use the public name')
  })

  test('public names, helpers beside them and packages are allowed', () => {
    const text = "import 'waybill'\nimport 'waybill/testing'\nimport './support.ts'\nimport 'zod'\n"
    expect(findViolations([{ path: 'examples/01-first.ts', text }])).toEqual([])
  })

  test('tests and scripts may look inside', () => {
    expect(judge('test/core/id.test.ts', "import { x } from '../../src/core/id.ts'")).toBeUndefined()
  })
})
