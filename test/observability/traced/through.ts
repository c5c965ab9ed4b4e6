import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as api from '@opentelemetry/api'
import pg from 'pg'
import { expect } from 'vitest'
import { event } from '../../../src/index.ts'
import { useOpenTelemetry } from '../../../src/observability/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { runScript } from '../../../src/testing/index.ts'
import { fresh } from '../../brokers/support.ts'
import { bundled } from '../../support/bundled.ts'
import { freshDatabase, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import type { Job } from './place.ts'
import { exportTo, spansIn } from './spans.ts'

const Placed = event<{ n: number }>('order.placed')

/** This process has the request, a second relays, a third consumes; what it returns goes the same way once more. */
export async function oneTraceThrough(broker: Job['broker']): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'traced-'))
  const spans = join(folder, 'spans')
  writeFileSync(spans, '')
  const database = await freshDatabase()
  const pool = new pg.Pool({ connectionString: database.url })
  const db = postgres({ pool })
  await db.migrate()
  exportTo(spans)
  const stop = useOpenTelemetry(api)
  const url = broker === 'http' ? '' : service(broker).url
  const job = { broker, url, place: fresh('traced'), database: database.url, spans }
  const children: ReturnType<typeof runScript>[] = []
  const child = (more: object) => {
    const env = { JOB: JSON.stringify({ ...job, ...more }) }
    const running = runScript({ script: bundled(new URL('./child.ts', import.meta.url)), env, timeout: 120_000 })
    children.push(running)
    return running
  }
  try {
    const consumer = child({ role: 'consumer' })
    // The relay comes second: of HTTP the receiver alone knows where it is, and a topic is made by whoever asks for it first.
    const ready = await consumer.line('ready', 60_000)
    child(broker === 'http' ? { role: 'relay', url: ready.split(' ')[1] } : { role: 'relay' })
    const request = api.trace.getTracer('test').startSpan('POST /orders')
    const inside = api.trace.setSpan(api.ROOT_CONTEXT, request)
    await api.context.with(inside, () => db.withTransaction((tx) => db.outbox.enqueue(tx, Placed({ n: 1 }))))
    request.end()
    const last = 'process invoice.sent'
    const here = () => spansIn(spans)
    const whole = () => here().length >= 7 && here().some(({ name }) => name === last)
    await eventually('the trace is whole', whole, { limit: 60_000, seen: () => here().map(({ name }) => name) })
    const all = here()
    const { traceId, spanId } = request.spanContext()
    expect(new Set(all.map(({ trace }) => trace)), 'one trace').toEqual(new Set([traceId]))
    expect(new Set(all.map((one) => one.process)).size, 'three processes').toBe(3)
    const of = (name: string) => all.find((one) => one.name === name)!
    const processed = of('process order.placed')
    expect(processed.parent).toBe(spanId)
    expect(of(last).parent, 'its output carries its span on').toBe(processed.span)
    expect(all.map(({ name }) => name).sort()).toEqual(
      ['POST /orders', 'outbox outbox', 'send order.placed', 'process order.placed']
        .concat(['outbox outbox', 'send invoice.sent', last])
        .sort(),
    )
    expect(processed).toMatchObject({
      kind: api.SpanKind.CONSUMER,
      attributes: {
        'messaging.system': broker,
        'messaging.operation.type': 'process',
        'messaging.consumer.group.name': 'billing',
        'messaging.destination.name': expect.stringMatching(/order\.placed|traced-/),
        'waybill.attempt': 1,
      },
    })
    expect(of('send order.placed')).toMatchObject({
      kind: api.SpanKind.PRODUCER,
      parent: spanId,
      attributes: {
        'messaging.system': broker,
        'messaging.operation.type': 'send',
        'messaging.destination.name': 'order.placed',
        'waybill.attempt': 1,
      },
    })
  } finally {
    stop()
    api.trace.disable()
    api.context.disable()
    for (const one of children) one.kill('SIGTERM')
    for (const one of children) await one.finished.catch(() => {})
    await pool.end()
    await database.drop()
    rmSync(folder, { recursive: true })
  }
}
