import { errorSummaries } from './error-summary.ts'
import { causesOf, framesOf } from './thrown.ts'

/** What one event says: ids, names, counts, times and summaries of errors. Never an object, so never a payload. */
export type LogFields = Readonly<Record<string, string | number | boolean>>

/** Ids and types come from other people's messages: a long one must not fill the log. */
const MAX_TEXT = 200
const MAX_REASON = 600
/** Our own sentences, whose end says what to do. */
const OUR_TEXTS: ReadonlySet<string> = new Set(['reason', 'message'])
const MAX_FRAMES = 10
const MAX_STACK = 2000

/** Times, which have their unit in a log: milliseconds, also since 1970. */
export const TIMES: Readonly<Record<string, string>> = {
  took: 'tookMs',
  retryIn: 'retryInMs',
  pausedFor: 'pausedForMs',
  waitedFor: 'waitedForMs',
  heldFor: 'heldForMs',
  created: 'createdMs',
  storeTime: 'storeTimeMs',
}

/** What moves the cursor of a terminal, or turns text round: topics and keys come from other people's messages. */
const CONTROLS =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what no log should hold
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu

/**
 * An event as flat fields. Whatever is not a plain value is left out; errors become their summary, and `at`, where it was
 * thrown. A `reason` that is a text is the summary of the event's error.
 */
export function fieldsOf(event: object): LogFields {
  const fields: Record<string, string | number | boolean> = {}
  const summed = typeof (event as { reason?: unknown }).reason === 'string'
  for (const [name, value] of Object.entries(event)) {
    if (value === undefined) continue
    // Also when it is a text: somebody threw it, and it may be the data.
    if (name === 'error' || (name === 'reason' && typeof value !== 'string')) addError(fields, name, value, summed)
    else if (typeof value === 'string') fields[name] = plainText(value, OUR_TEXTS.has(name) ? MAX_REASON : MAX_TEXT)
    else if (typeof value === 'number') fields[TIMES[name] ?? name] = Math.round(value * 1000) / 1000
    else if (typeof value === 'boolean') fields[name] = value
  }
  return fields
}

type FieldsSoFar = Record<string, string | number | boolean>

function addError(fields: FieldsSoFar, name: string, error: unknown, summed: boolean): void {
  if (!summed) {
    const [first, ...causes] = errorSummaries(error)
    fields[name] = first!
    if (causes.length > 0) fields['cause'] = causes.join(' < ')
  }
  const at = placeOf(error)
  if (at !== undefined) fields['at'] = at
}

/** This file, when it is not part of a bundle, tells our code from the user's. */
const OURS = /^(.*[\\/])core[\\/]log-line\.[jt]s$/.exec(withoutScheme(import.meta.url))?.[1]

/** The first place in the user's own code that the deepest error names: `/app/billing.ts:12:9`, and nothing of its text. */
function placeOf(error: unknown): string | undefined {
  for (const one of [...causesOf(error)].reverse()) {
    const place = framesOf(one).map(placeIn).find(isTheirs)
    // Its end says which line.
    if (place !== undefined) return plainText(place.length > MAX_TEXT ? `…${place.slice(1 - MAX_TEXT)}` : place)
  }
  return undefined
}

/** Of `at bill (/app/billing.ts:12:9)` what stands in the brackets, of `at async /app/billing.ts:12:9` the last part. */
function placeIn(frame: string): string {
  const trimmed = frame.trim()
  if (!trimmed.endsWith(')')) return withoutScheme(trimmed.replace(/^at (?:async )?/, ''))
  return withoutScheme(trimmed.slice(trimmed.indexOf(' (') + 2, -1))
}

function isTheirs(place: string): boolean {
  if (!/:\d+:\d+$/.test(place) || place.startsWith('node:')) return false
  return !/[\\/]node_modules[\\/]/.test(place) && (OURS === undefined || !place.startsWith(OURS))
}

function withoutScheme(url: string): string {
  return url.startsWith('file://') ? url.slice('file://'.length) : url
}

/** Where the deepest error of a chain was thrown: functions, files and lines, and nothing of its text. */
export function stackOf(event: object): string | undefined {
  const { error, reason } = event as { error?: unknown; reason?: unknown }
  const given = error ?? (typeof reason === 'string' ? undefined : reason)
  if (given === undefined) return undefined
  for (const one of [...causesOf(given)].reverse()) {
    const frames = framesOf(one).slice(0, MAX_FRAMES)
    if (frames.length > 0) return plainText(frames.map((frame) => frame.trim()).join(' | '), MAX_STACK)
  }
  return undefined
}

/** Short, and without what moves the cursor of a terminal. */
export function plainText(text: string, most = MAX_TEXT): string {
  const short = text.length > most ? `${text.slice(0, most - 1)}…` : text
  return short.replace(CONTROLS, '\ufffd')
}

/** `waybill:flow.paused flow=billing failures=3`: text that could break the line or the form is quoted. */
export function lineOf(text: string, fields: LogFields): string {
  const parts = Object.entries(fields).map(([name, value]) => {
    const bare = typeof value !== 'string' || /^[\w.:/@+-]+$/.test(value)
    return `${name}=${bare ? value : JSON.stringify(value)}`
  })
  return [text, ...parts].join(' ')
}
