import { execFile, spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { beforeAll, expect, test } from 'vitest'
import { debianPackages } from '../../scripts/services/debian.ts'
import { type GaugeSource, observe, telemetry } from '../../src/core/index.ts'
import { METRICS } from '../../src/observability/index.ts'
import { scraped } from '../observability/worlds.ts'

const ops = fileURLToPath(new URL('../../ops', import.meta.url))
let promtool: string

async function run(...args: string[]): Promise<string> {
  const { stdout, stderr } = await promisify(execFile)(promtool, args, { cwd: ops })
  return stdout + stderr
}

beforeAll(async () => {
  const root = await debianPackages('prometheus', { packages: ['prometheus'] }, () => {})
  promtool = join(root, 'usr/bin/promtool')
}, 300_000)

test('promtool reads a scrape, and finds no fault but the names that were asked for', async () => {
  const metrics = scraped()
  const enqueued = { table: 'a "table"\n\\', topic: 'orders', count: 1, duplicates: 1 }
  telemetry['outbox.enqueued'].publish(enqueued)
  const handled = { flow: 'f', type: 't', tenant: undefined, result: 'done', count: 1, took: 1 } as const
  telemetry['messages.handled'].publish(handled)
  telemetry['messages.handled'].publish({ ...handled, table: 'outbox', topic: 'orders', ages: [1] })
  const read = async () =>
    METRICS.flatMap(({ asks }) => (asks?.startsWith('outbox.') ? [{ gauge: asks, value: 1 }] : []))
  const gauges = { subject: 'table', of: 'outbox', leads: () => true, read } as unknown as GaugeSource
  const unobserve = observe({ name: 'relay', status: () => ({ state: 'running' }), gauges })
  const text = await metrics.registry.metrics()
  unobserve()
  metrics.stop()
  const { stdout, stderr } = spawnSync(promtool, ['check', 'metrics'], { input: text, encoding: 'utf8' })
  const problems = (stdout + stderr).split('\n').filter((line) => line !== '')
  // Gauges that count are called so since Prometheus's first years, and by those who asked for them.
  expect(
    problems.filter((line) => !/^\w+_count non-histogram and non-summary metrics should not have/.test(line)),
  ).toEqual([])
  expect(problems.length).toBeGreaterThan(3)
})

test('promtool takes the rules', async () => {
  expect(await run('check', 'rules', 'alerts.yml')).toMatch(/SUCCESS: \d+ rules found/)
})

test('and a relay that hangs is seen within a minute', async () => {
  expect(await run('test', 'rules', 'alerts.test.yml')).toContain('SUCCESS')
})
