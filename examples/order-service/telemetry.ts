// Logs, metrics and traces of one process, and the port where they can be read.

import { createServer, type ServerResponse } from 'node:http'
import * as otel from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, type ReadableSpan, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { pino } from 'pino'
import * as client from 'prom-client'
import type { Status } from 'waybill'
import { logTo, recordMetrics, useOpenTelemetry } from 'waybill/observability'
import type { Answer, route } from './api.ts'

/** Before anything starts, so that nothing is missed. */
export function observe(role: string): pino.Logger {
  const log = pino({ name: role, base: { pid: process.pid }, level: process.env['LOG_LEVEL'] ?? 'info' })
  logTo(log, { level: log.level === 'debug' ? 'debug' : 'info' })
  recordMetrics({ client })

  // Spans become lines of the log here. Give OTLPTraceExporter to a BatchSpanProcessor to send them to a collector.
  const exporter = {
    export(spans: ReadableSpan[], done: (result: { code: number }) => void) {
      for (const span of spans) {
        const { traceId, spanId } = span.spanContext()
        log.debug({ traceId, spanId, parent: span.parentSpanContext?.spanId }, `span ${span.name}`)
      }
      done({ code: 0 })
    },
    shutdown: async () => {},
  }
  otel.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
  otel.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  useOpenTelemetry(otel)
  return log
}

export interface Serving {
  readonly port: number
  readonly log: pino.Logger
  readonly status: () => Status
  /** The routes of the API, in the process that has them. */
  readonly routes?: typeof route
}

/** Serves `/metrics` and `/status`, and the API. Stops before everything else: what comes in last could not be finished. */
export async function serve({ port, log, status, routes }: Serving) {
  const server = createServer(async (request, response) => {
    if (request.url === '/metrics') return send(response, { status: 200, body: await client.register.metrics() })
    if (request.url === '/status') return send(response, { status: 200, body: status() })
    const found = routes?.(request)
    if (found === undefined) return send(response, { status: 404, body: { error: 'there is no such page' } })
    // The span that everything follows from: events, the saga, what other services do about it.
    await otel.trace.getTracer('api').startActiveSpan(found.name, async (span) => {
      const answer = await found.answer().catch((error): Answer => {
        log.error({ err: error, route: found.name }, 'a request failed')
        return { status: 503, body: { error: 'it did not work; please try again' } }
      })
      span.end()
      send(response, answer)
    })
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, resolve)
  })
  const stop = () => {
    // Clients keep their connections and send on: each is closed with its next answer, or `close` would never end.
    server.prependListener('request', (_request, response) => response.setHeader('connection', 'close'))
    return new Promise<void>((resolve) => server.close(() => resolve()))
  }
  return { name: 'http', phase: 'requests' as const, stop }
}

function send(response: ServerResponse, { status, body, headers }: Answer): void {
  const text = typeof body === 'string' ? body : body === undefined ? '' : JSON.stringify(body)
  const type = typeof body === 'string' ? client.register.contentType : 'application/json'
  response.writeHead(status, { 'content-type': type, ...headers }).end(text)
}
