import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as client from 'prom-client'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { debianPackages } from '../../scripts/services/debian.ts'
import { freePort } from '../../scripts/services/ports.ts'
import { type GaugeSource, type GaugeValue, observe, telemetry, Unavailable } from '../../src/core/index.ts'
import { recordMetrics } from '../../src/observability/index.ts'
import { scraped } from '../observability/worlds.ts'
import { outboxOn, Placed } from '../postgres/support.ts'
import { eventually } from '../support/wait.ts'

const ops = (file: string) => fileURLToPath(new URL(`../../ops/${file}`, import.meta.url))
const ends: (() => unknown)[] = []
let program: string
beforeAll(async () => {
  const root = await debianPackages('prometheus', { packages: ['prometheus'] }, () => {})
  program = join(root, 'usr/bin/prometheus')
}, 300_000)
afterAll(async () => {
  for (const end of ends.splice(0).reverse()) await end()
})

async function listening(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  ends.push(() => server.closeAllConnections())
  ends.push(() => void server.close())
  return (server.address() as AddressInfo).port
}

/** Prometheus with the rules of ops/ as they are; only the scrapes come more often. */
async function prometheus(...targets: number[]): Promise<(path: string) => Promise<unknown>> {
  const folder = await mkdtemp(join(tmpdir(), 'waybill-prometheus-'))
  ends.push(() => rm(folder, { recursive: true, force: true }))
  const config = (await readFile(ops('prometheus.yml'), 'utf8'))
    .replace('scrape_interval: 15s', 'scrape_interval: 1s')
    .replace('[alerts.yml]', `[${JSON.stringify(ops('alerts.yml'))}]`)
    .replace(`'localhost:9464'`, targets.map((port) => `'127.0.0.1:${port}'`).join(', '))
  await writeFile(join(folder, 'prometheus.yml'), config)
  const port = await freePort()
  const args = [
    `--config.file=${folder}/prometheus.yml`,
    `--storage.tsdb.path=${folder}/data`,
    `--web.listen-address=127.0.0.1:${port}`,
  ]
  const child: ChildProcess = spawn(program, args, { stdio: 'ignore' })
  const ended = new Promise((resolve) => child.once('exit', resolve))
  ends.push(async () => {
    child.kill('SIGKILL')
    await ended
  })
  return async (path) => {
    const response = await fetch(`http://127.0.0.1:${port}/api/v1/${path}`)
    return ((await response.json()) as { data: unknown }).data
  }
}

/** One of everything that the dashboard shows and an outbox does not have: consumers, sagas, projections, an inbox, a cleaner. */
function everythingElse(): void {
  const type = 'order.placed'
  const tenant = undefined
  telemetry['messages.handled'].publish({ flow: 'billing', type, tenant, result: 'done', count: 1, took: 5 })
  // Of another outbox, whose relay works.
  const out = { flow: 'other', type, tenant, table: 'other', topic: type, ages: [5], count: 1, took: 5 }
  telemetry['messages.handled'].publish({ ...out, result: 'done' })
  const dead = { flow: 'billing', type, id: '1', reason: 'Error: no', attempt: 1, tenant }
  telemetry['message.dead'].publish(dead)
  telemetry['message.dead'].publish({ ...dead, table: 'outbox', topic: type })
  const about = { type: 'order', id: '1', tenant, traceparent: undefined }
  telemetry['saga.started'].publish(about)
  telemetry['saga.ended'].publish({ ...about, status: 'completed', took: 5 })
  telemetry['saga.held'].publish({ ...about, reason: 'wait' })
  telemetry['inbox.duplicate'].publish({ subscriber: 'billing', type, id: '1' })
  telemetry['cleaner.cleaned'].publish({ store: 'outbox', count: 1, partitions: 0, took: 5 })
}

/** Workers that tell of sagas and of a projection. */
function observeOthers(): void {
  const told = (subject: GaugeSource['subject'], of: string, values: readonly GaugeValue[]) => {
    const gauges: GaugeSource = { subject, of, leads: () => true, read: async () => values }
    ends.push(observe({ name: of, status: () => ({ state: 'running', lastSuccess: new Date() }), gauges }))
  }
  told('saga', 'saga_executions', [
    { gauge: 'saga.alive', value: 1, labels: { type: 'order', state: 'running' } },
    { gauge: 'saga.attention', value: 0, labels: { type: 'order' } },
    { gauge: 'saga.oldest_due', value: 0, labels: { type: 'order' } },
    { gauge: 'saga.oldest_attention', value: 0, labels: { type: 'order' } },
  ])
  told('projection', 'orders/1', [
    { gauge: 'projection.lag', value: 1 },
    { gauge: 'projection.lag_seconds', value: 1 },
    { gauge: 'projection.parked', value: 0 },
    { gauge: 'projection.held', value: 0 },
  ])
}

/** Serves a registry as its content type says; before each scrape something happens. */
function served(registry: client.Registry<never>): Promise<number> {
  return listening(
    createServer((_, response) => {
      everythingElse()
      response.setHeader('content-type', registry.contentType)
      void registry.metrics().then((text) => response.end(text))
    }),
  )
}

test('Prometheus with ops/ as it is raises the alarm for a relay whose broker is away, and fills every panel', async () => {
  const t = await outboxOn()
  ends.push(() => t.end())
  const metrics = scraped()
  ends.push(() => metrics.stop())
  await t.enqueue(Placed({ n: 1 }))
  await t.relay().runOnce()
  await t.enqueue(Placed({ n: 2 }))
  // It has waited for as long as a relay may take: a test need not.
  await t.pool.query(`UPDATE outbox SET created_at = created_at - interval '30 seconds' WHERE state = 'ready'`)
  const to = async () => {
    throw new Unavailable('the broker is away')
  }
  await t.relay({ to: to as never }).start()
  observeOthers()
  // Read by its parser of OpenMetrics, which is stricter.
  const open = new client.Registry<client.OpenMetricsContentType>()
  open.setContentType(client.openMetricsContentType as never)
  ends.push(recordMetrics({ client, registry: open as never }))
  const ask = await prometheus(await served(metrics.registry as never), await served(open as never))
  const firing = async () => {
    const { alerts } = (await ask('alerts')) as { alerts: { state: string; labels: Record<string, string> }[] }
    return alerts
      .filter(({ state }) => state === 'firing')
      .map(({ labels }) => `${labels['alertname']} ${labels['table']}`)
  }
  await eventually(
    'the alarm',
    async () => (await firing().catch(() => [] as string[])).includes('OutboxOldestEventWaits outbox'),
    {
      limit: 55_000,
    },
  )
  const dashboard = JSON.parse(await readFile(ops('grafana-dashboard.json'), 'utf8')) as {
    panels: { title: string; targets: { expr: string }[] }[]
  }
  const expressions = dashboard.panels.flatMap(({ targets }) => targets.map(({ expr }) => expr))
  const empty = async () => {
    const results = await Promise.all(
      expressions.map(async (expr) => {
        const query = encodeURIComponent(expr.replaceAll('$table', '.*'))
        const { result } = (await ask(`query?query=${query}`)) as { result: { value: [number, string] }[] }
        return result.some(({ value }) => Number.isFinite(Number(value[1])))
      }),
    )
    return expressions.filter((_, i) => !results[i])
  }
  let left: string[] = expressions
  await eventually(
    'every panel has data',
    async () => {
      left = await empty()
      return left.length === 0
    },
    { limit: 30_000, every: 500, seen: () => left },
  )
  // What the variable of the dashboard asks for: the tables to choose from.
  expect(JSON.parse(await readFile(ops('grafana-dashboard.json'), 'utf8')).templating.list[1].query.query).toBe(
    'label_values(outbox_leader, table)',
  )
  expect(await ask('label/table/values?match[]=outbox_leader')).toContain('outbox')
  const { result: targets } = (await ask('query?query=up')) as { result: { value: [number, string] }[] }
  expect(targets.map(({ value }) => value[1])).toEqual(['1', '1'])
}, 120_000)
