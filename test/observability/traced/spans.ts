/** The real SDK in this process, with an exporter that writes each span as a line of a file. */
import { appendFileSync, readFileSync } from 'node:fs'
import * as api from '@opentelemetry/api'
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks'
import { BasicTracerProvider, type ReadableSpan, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base'

/** A span, as far as these tests look at it. */
export interface Seen {
  readonly process: number
  readonly name: string
  readonly kind: number
  readonly trace: string
  readonly span: string
  readonly parent: string | undefined
  readonly links: readonly string[]
  readonly attributes: Record<string, unknown>
}

export function exportTo(file: string): void {
  const line = (span: ReadableSpan) => {
    const { traceId: trace, spanId } = span.spanContext()
    const links = span.links.map(({ context }) => context.traceId)
    const { name, kind, attributes, parentSpanContext } = span
    const seen: Seen = {
      process: process.pid,
      ...{ name, kind, trace, span: spanId, parent: parentSpanContext?.spanId, links, attributes },
    }
    return `${JSON.stringify(seen)}\n`
  }
  const exporter = {
    export(spans: ReadableSpan[], done: (result: { code: number }) => void) {
      appendFileSync(file, spans.map(line).join(''))
      done({ code: 0 })
    },
    shutdown: async () => {},
  }
  api.context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable())
  api.trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }))
}

export function spansIn(file: string): Seen[] {
  return readFileSync(file, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Seen)
}
