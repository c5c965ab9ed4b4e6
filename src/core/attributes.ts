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
  if (typeof time !== 'string' || !RFC3339.test(time) || Number.isNaN(Date.parse(time))) {
    malformed('time', time, 'an RFC 3339 time')
  }
}

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
