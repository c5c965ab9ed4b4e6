/** Samples of the guides on settings, telemetry, traces, errors, pipes and the engine: each is run here, as it stands. */
import * as otelApi from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import * as promClient from 'prom-client'
import { expect, onTestFinished, test, vi } from 'vitest'
import { Relay, telemetry } from '../../src/index.ts'
import { memory } from '../../src/memory/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { collector } from '../../src/testing/index.ts'
import { describeWith } from '../support/services.ts'
import { eventually } from '../support/wait.ts'
import { OrderPlaced, onPostgres, play } from './play.ts'

async function printedBy(work: () => Promise<unknown>): Promise<unknown[]> {
  const log = vi.spyOn(console, 'log').mockImplementation(() => {})
  try {
    await work()
    return log.mock.calls.flat()
  } finally {
    log.mockRestore()
  }
}

test('pipes: what is read is stored', async () => {
  const printed = await printedBy(() => play('pipes', 1))
  const stored = printed.map((line) => Number(/^stored (\d+)$/.exec(String(line))?.[1]))
  expect(stored.reduce((sum, one) => sum + one, 0)).toBe(2)
})

test('engine: inputs, outputs, from start to stop', async () => {
  const { engine, inside, outside, OrderPlaced } = await play('engine', 1)
  expect(engine.status().state).toBe('stopped')
  await engine.start()
  outside.source('seen', { topics: ['invoice.*'] })
  await inside.publish([OrderPlaced({ orderId: 'A-1' })])
  await eventually('the invoice is outside', () => outside.stats('seen').ready === 1)
  await engine.stop()
})

test('settings: from the environment into relay and cleaner', async () => {
  vi.stubEnv('OUTBOX_RELAY_ENABLED', 'false')
  const { relay, settings } = await play('settings', 1, { db: memory(), broker: collector() })
  vi.unstubAllEnvs()
  expect(settings.relay).toEqual({ enabled: false })
  await relay.start()
  expect(relay.status()).toMatchObject({ state: 'paused' })
  await relay.stop()
})

test('watching: an event is relayed in the trace of the request that enqueued it', async () => {
  const exporter = new InMemorySpanExporter()
  const spanProcessors = [new SimpleSpanProcessor(exporter)]
  otelApi.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors }))
  otelApi.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  onTestFinished(() => {
    otelApi.trace.disable()
    otelApi.context.disable()
  })
  await play('watching', 2)
  const db = memory()
  const relay = new Relay({ from: db.outbox, to: collector() })
  await otelApi.trace.getTracer('test').startActiveSpan('POST /orders', async (span) => {
    await db.withTransaction((tx) => db.outbox.enqueue(tx, OrderPlaced({ orderId: 'A-1', total: 30 })))
    span.end()
  })
  await relay.runOnce()
  await relay.stop()
  const spans = exporter.getFinishedSpans()
  expect(spans.map(({ name }) => name)).toEqual(expect.arrayContaining([expect.stringMatching(/^send /)]))
  expect(new Set(spans.map((span) => span.spanContext().traceId)).size).toBe(1)
})

test('telemetry: logs, metrics, traces and a subscription', async () => {
  const page = vi.fn()
  const { stopLogging, stopMetrics } = await play('../telemetry', 1, { promClient, otelApi, page })
  const warn = vi.spyOn(console, 'warn').mockImplementation(() => {})
  telemetry['flow.paused'].publish({ flow: 'relay outbox', error: new Error('away'), retryIn: 200 } as never)
  expect(page.mock.calls).toEqual([['relay outbox waits for 200 ms']])
  expect(warn).toHaveBeenCalledOnce()
  expect(await promClient.register.metrics()).toContain('waybill_flow_paused')
  warn.mockRestore()
  stopLogging()
  stopMetrics()
})

describeWith(['postgres'], 'the sample of the error index', () => {
  test('errors: a code is met, another goes on', () =>
    onPostgres(async ({ pool }) => {
      const db = postgres({ pool, outbox: { table: 'other' } })
      const work = () => db.outbox.admin.stats()
      await play('../errors', 1, { db, work })
      expect((await work()).states.ready.count).toBe(0)
      const wrong = async () => {
        throw new TypeError('not ours')
      }
      await expect(play('../errors', 1, { db, work: wrong })).rejects.toThrow('not ours')
    }))
})
