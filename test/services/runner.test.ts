import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { exists } from '../../scripts/services/cache.ts'
import { startTime } from '../../scripts/services/process.ts'
import { without } from '../support/services.ts'
import { script, temporaryDir, until } from './support.ts'

const sample = ['--root', 'test/services/sample']
/** What these tests are not about need not be started. */
const others = 'redis,redis6,rabbitmq,nats,kafka'

test('ends with what was not exercised, what failed and the counts, and fails when a test or a file failed', async () => {
  const args = [...sample, '--without', `postgres,postgres15,${others}`, 'results', 'broken']
  const { code, out } = await script('scripts/test.ts', args).ended
  expect(code).toBe(1)
  const lines = out.trimEnd().split('\n')
  expect(lines.at(-1)).toBe('1 passed, 2 failed, 3 skipped')
  expect(lines.slice(lines.indexOf('Not exercised:') + 1, -1)).toEqual([
    '  server postgres: left out, as asked',
    '  server postgres15: left out, as asked',
    '  server pgbouncer: left out, as asked',
    ...others.split(',').map((name) => `  server ${name}: left out, as asked`),
    '  results.sample.ts > skips with a reason: needs a full moon',
    '  results.sample.ts > on PostgreSQL [without postgres] > skips with its suite: without postgres',
    '  results.sample.ts > is not written yet: to do',
    'Failed:',
    '  broken.sample.ts: a file that cannot be loaded',
    '  results.sample.ts > fails: expected 1 to be 2 // Object.is equality',
  ])
})

test('succeeds with plain counts when all is well', async () => {
  const args = [...sample, `--without=postgres,postgres15,${others}`, 'results', '-t', '^passes']
  const { code, out } = await script('scripts/test.ts', args).ended
  expect([code, out.trimEnd().split('\n').at(-1)]).toEqual([0, '1 passed, 0 failed, 4 skipped'])
})

test('names a server that cannot be had, the way to get it, and the way to go without', async () => {
  const nowhere = { WAYBILL_TEST_POSTGRES15_URL: 'postgres://postgres@127.0.0.1:1/postgres' }
  const args = [...sample, '--without', `postgres,${others}`]
  const { code, all, out } = await script('scripts/test.ts', args, nowhere).ended
  expect(code).toBe(1)
  expect(all).toContain('postgres15: nothing responds at WAYBILL_TEST_POSTGRES15_URL=postgres://postgres@127.0.0.1:1')
  expect(all).toContain('to get it: apt-get install postgresql-15')
  expect(all).toContain('to go without: --without postgres15')
  expect(out.trimEnd().split('\n').at(-1)).toBe('0 passed, 1 failed')
})

test('refuses an unknown server with the nearest name', async () => {
  const { code, all } = await script('scripts/test.ts', ['--without', 'kafak']).ended
  expect(code).toBe(1)
  expect(all).toContain("unknown service 'kafak'; did you mean 'kafka'?")
})

test.skipIf(without('postgres'))('killed without warning, leaves no process and no folder behind', async () => {
  const file = join(await temporaryDir(), 'pids.json')
  const args = [...sample, '--without', `postgres15,pgbouncer,${others}`, 'hangs']
  const { child } = script('scripts/test.ts', args, { WAYBILL_SAMPLE_FILE: file })
  const { run, pids } = JSON.parse(await until(() => readFile(file, 'utf8').catch(() => null)))
  expect(pids.map((pid: number) => startTime(pid) !== undefined)).toEqual([true, true, true, true, true])
  child.kill('SIGKILL')
  await until(() => pids.every((pid: number) => startTime(pid) === undefined))
  await until(async () => !(await exists(run)))
})
