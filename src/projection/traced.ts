import { inSpan, traces } from '../core/index.ts'
import { idText, type Projection } from './definition.ts'
import type { Prepared } from './prepare.ts'

/** As many links as the SDKs keep by default. */
const MOST_LINKS = 128

/** A batch holds events of many traces: its span is linked with them, and is a child of none. */
export function inSpanOf<Result>(projection: Projection, events: readonly Prepared[], apply: () => Result): Result {
  if (traces() === undefined) return apply()
  const links = new Set<string>()
  for (const { message } of events) {
    const traceparent = message?.extensions['traceparent']
    if (typeof traceparent === 'string') links.add(traceparent)
    if (links.size === MOST_LINKS) break
  }
  if (links.size === 0) return apply()
  const name = idText(projection)
  const attributes = { 'waybill.projection': name, 'messaging.batch.message_count': events.length }
  return inSpan(() => ({ name: `project ${name}`, attributes, links: [...links] }), apply)
}
