/** The W3C trace context of a message: `00-<trace id>-<span id>-<flags>`. */
export interface TraceParent {
  readonly traceId: string
  readonly spanId: string
  /** Bit 0: sampled. */
  readonly traceFlags: number
}

const SHAPE = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/
const NO_TRACE = '0'.repeat(32)
const NO_SPAN = '0'.repeat(16)

/** The parts of a `traceparent`, or `undefined` when it is none. Versions to come are read as far as we know them. */
export function parseTraceparent(text: unknown): TraceParent | undefined {
  if (typeof text !== 'string') return undefined
  const [, version, traceId, spanId, flags, rest] = SHAPE.exec(text) ?? []
  if (traceId === undefined || spanId === undefined || flags === undefined) return undefined
  if (version === 'ff' || (version === '00' && rest !== undefined)) return undefined
  if (traceId === NO_TRACE || spanId === NO_SPAN) return undefined
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) }
}

/** A span context as the W3C header `traceparent`. */
export function formatTraceparent({ traceId, spanId, traceFlags }: TraceParent): string {
  return `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, '0')}`
}
