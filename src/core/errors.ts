/**
 * One error class for the whole package. `code` is for programs and never changes its meaning;
 * the message is for people and says what was wrong, the value, what is allowed and what to do.
 * Payloads never appear in either.
 */
export class WaybillError extends Error {
  readonly code: string

  constructor(code: string, message: string, options?: { cause?: unknown }) {
    super(message, options)
    this.name = 'WaybillError'
    this.code = code
  }
}

/** Thrown by a handler: this message can never succeed. It is dead-lettered now, whatever attempts are left. */
export class Reject extends WaybillError {
  constructor(reason: string, options?: { cause?: unknown }) {
    super('REJECTED', reason, options)
    this.name = 'Reject'
  }
}

/**
 * Thrown when what a step depends on as a whole is away (a broker, a database), so that the message is
 * not to blame: nobody is charged, the flow pauses and probes.
 */
export class Unavailable extends WaybillError {
  constructor(reason: string, options?: { cause?: unknown }) {
    super('UNAVAILABLE', reason, options)
    this.name = 'Unavailable'
  }
}

/** Longest error text that is stored with a message or logged. */
export const MAX_ERROR_LENGTH = 500

/**
 * The summary of an error that is safe to keep: its name, code and message, one line, bounded. Some drivers
 * put values into `detail` or `where`; those are never read. What drivers and parsers quote of the data itself
 * (PostgreSQL's `invalid input syntax for type json: "…"`) and whatever follows a brace is cut out.
 */
export function errorSummary(error: unknown): string {
  if (!(error instanceof Error)) return `non-error thrown (${error === null ? 'null' : typeof error})`
  const code = (error as { code?: unknown }).code
  const label = typeof code === 'string' || typeof code === 'number' ? `${error.name} [${code}]` : error.name
  const text = `${label}: ${redact(error)}`
  return text.length > MAX_ERROR_LENGTH ? `${text.slice(0, MAX_ERROR_LENGTH - 1)}…` : text
}

function redact(error: Error): string {
  let line = error.message.replace(/\s+/g, ' ').trim()
  // Our own errors quote names and attributes, never data. In others a short quoted word may be a table's name,
  // unless it stands where PostgreSQL and V8 put values.
  if (!(error instanceof WaybillError)) {
    line = line
      .replace(/(^|, )(\.\.\.)?".*"(\.\.\.)? is not valid JSON/, '$1"…" is not valid JSON')
      .replace(/: ".*"/, ': "…"')
      .replace(/\bvalue ".*" is out of range/, 'value "…" is out of range')
  }
  return line.replace(/[[{].{64,}$/, '…').replace(/"[^"]{65,}"/g, '"…"')
}
