import { WaybillError } from './errors.ts'
import { describe } from './options.ts'

/** What CloudEvents allows an extension attribute to hold. */
export type ExtensionValue = string | number | boolean | Uint8Array

/**
 * Extension attributes. Those Waybill itself reads:
 * `partitionkey` (order per key), `tenantid`, `eventversion`, `traceparent` and `tracestate`,
 * `correlationid` and `causationid`.
 */
export type Extensions = Readonly<Record<string, ExtensionValue>>

/** The context attributes of a CloudEvents 1.0 event. */
export interface Attributes {
  readonly id: string
  readonly source: string
  readonly type: string
  readonly subject?: string | undefined
  /** RFC 3339. */
  readonly time?: string | undefined
  readonly datacontenttype?: string | undefined
  readonly dataschema?: string | undefined
  readonly extensions?: Extensions | undefined
}

const CONTEXT_ATTRIBUTES = new Set([
  'id',
  'source',
  'type',
  'specversion',
  'subject',
  'time',
  'datacontenttype',
  'dataschema',
  'data',
  'data_base64',
])

const RFC3339 = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$/

/** Throws MALFORMED_MESSAGE, naming the attribute, unless the attributes are those of a CloudEvents 1.0 event. */
export function checkAttributes(attributes: Attributes): void {
  checkContext(attributes)
  for (const name in attributes.extensions) checkExtension(name, attributes.extensions[name])
}

/** As `checkAttributes`, without the extensions. */
export function checkContext(attributes: Attributes): void {
  // One by one: this runs for every message that is read.
  required('id', attributes.id)
  required('source', attributes.source)
  required('type', attributes.type)
  optional('subject', attributes.subject)
  optional('datacontenttype', attributes.datacontenttype)
  optional('dataschema', attributes.dataschema)
  if (attributes.time !== undefined) checkTime(attributes.time)
}

/** One context attribute that is there, as `checkContext` would. */
export function checkContextValue(name: string, value: string): void {
  if (name === 'time') checkTime(value)
  else required(name, value)
}

function checkTime(time: unknown): void {
  if (typeof time !== 'string' || !RFC3339.test(time) || Number.isNaN(Date.parse(time)) || !isOfCalendar(time)) {
    malformed('time', time, 'an RFC 3339 time')
  }
}

/** `Date.parse` makes 1 March of 30 February, and midnight of 24 o'clock. */
function isOfCalendar(time: string): boolean {
  if (time[11] === '2' && time[12] === '4') return false
  const day = Number(time.slice(8, 10))
  if (day <= 28) return true
  return day <= new Date(Date.UTC(Number(time.slice(0, 4)), Number(time.slice(5, 7)), 0)).getUTCDate()
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what CloudEvents forbids
const FORBIDDEN = /[\u0000-\u001f\u007f-\u009f\p{Cs}\p{Noncharacter_Code_Point}]/u
/** All that a URI may hold; what its parts are is for whoever uses it. */
const URI_REFERENCE = /^(?:[\w\-.~:/?#[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+$/
const ABSOLUTE_URI = /^[A-Za-z][A-Za-z0-9+.-]*:/

/**
 * What CloudEvents asks of values, beyond what is needed to read them. Held against events that are made here; those of
 * others are taken as they come.
 */
export function checkValues(attributes: Attributes): void {
  const { source, dataschema, extensions } = attributes
  for (const name of ['id', 'source', 'type', 'subject', 'datacontenttype', 'dataschema'] as const) {
    const value = attributes[name]
    if (value !== undefined && FORBIDDEN.test(value)) malformed(name, value, NO_CONTROLS)
  }
  for (const name in extensions) {
    const value = extensions[name]
    if (typeof value === 'string' && FORBIDDEN.test(value)) malformed(name, value, NO_CONTROLS)
  }
  if (!URI_REFERENCE.test(source)) malformed('source', source, 'a URI, or a reference such as /orders, without spaces')
  if (dataschema !== undefined && !(ABSOLUTE_URI.test(dataschema) && URI_REFERENCE.test(dataschema)))
    malformed('dataschema', dataschema, 'an absolute URI, such as https://example.com/order.json')
}

const NO_CONTROLS = 'text without control characters and half characters'

export function missing(name: string): never {
  return malformed(name, undefined, NOT_EMPTY)
}

const NOT_EMPTY = 'a string that is not empty'

function required(name: string, value: unknown): void {
  if (typeof value !== 'string' || value === '') malformed(name, value, NOT_EMPTY)
}

function optional(name: string, value: unknown): void {
  if (value !== undefined) required(name, value)
}

export function checkExtension(name: string, value: unknown): void {
  checkExtensionName(name)
  if (typeof value === 'number' && (!Number.isInteger(value) || value > 2147483647 || value < -2147483648)) {
    malformed(name, value, 'a 32-bit whole number, a string, a boolean or bytes')
  }
  const type = typeof value
  if (type !== 'string' && type !== 'number' && type !== 'boolean' && !(value instanceof Uint8Array)) {
    malformed(name, value, 'a 32-bit whole number, a string, a boolean or bytes')
  }
}

// Names are few and come with every message: each is examined once, until there are more than anybody means.
const knownNames = new Set<string>()

export function checkExtensionName(name: string): void {
  if (knownNames.has(name)) return
  if (!/^[a-z0-9]+$/.test(name)) malformed(name, name, 'named with lower-case letters and digits only')
  if (CONTEXT_ATTRIBUTES.has(name)) malformed(name, name, 'named otherwise than a context attribute')
  if (knownNames.size < 1000 && name.length < 64) knownNames.add(name)
}

export function malformed(name: string, value: unknown, allowed: string): never {
  throw new WaybillError(
    'MALFORMED_MESSAGE',
    `message attribute ${describe(name)}: ${describe(value)}; it must be ${allowed}`,
  )
}
