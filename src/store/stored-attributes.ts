import { describe, type Extensions, type ExtensionValue, type Message } from '../core/index.ts'

/** What a store keeps as JSON beside an event: everything of a CloudEvent that has no column or field of its own. */
export interface StoredAttributes {
  time?: string
  subject?: string
  datacontenttype?: string
  dataschema?: string
  extensions?: Record<string, string | number | boolean | { base64: string }>
}

/** Extensions that every store keeps in a column or field of its own. */
const OWN_EXTENSIONS = new Set(['partitionkey', 'tenantid', 'eventversion'])

export function storedAttributes(message: Message): StoredAttributes {
  const { extensions } = message
  const stored: StoredAttributes = {}
  if (message.time !== undefined) stored.time = message.time
  if (message.subject !== undefined) stored.subject = message.subject
  if (message.datacontenttype !== undefined) stored.datacontenttype = message.datacontenttype
  if (message.dataschema !== undefined) stored.dataschema = message.dataschema
  for (const name in extensions) {
    if (OWN_EXTENSIONS.has(name)) continue
    stored.extensions ??= {}
    stored.extensions[name] = storedValue(extensions[name]!)
  }
  return stored
}

function storedValue(value: ExtensionValue): string | number | boolean | { base64: string } {
  return value instanceof Uint8Array ? { base64: Buffer.from(value).toString('base64') } : value
}

/** Throws what is wrong with an event that cannot be read. The text never quotes its data. */
export type Malformed = (what: string) => never

/** Others may write to a store too, and need not know what a relay can read. `where` begins the error's text. */
export function checkStored(stored: unknown, where: string, malformed: Malformed): asserts stored is StoredAttributes {
  if (!isObject(stored)) malformed(`${where} is not a JSON object`)
  const { time, subject, datacontenttype, dataschema, extensions } = stored
  if (!isText(time) || !isText(subject) || !isText(datacontenttype) || !isText(dataschema)) {
    malformed(`${where}: time, subject, datacontenttype and dataschema must be strings`)
  }
  if (extensions !== undefined && !isObject(extensions)) malformed(`${where}: extensions is not a JSON object`)
}

/** All extensions of an event: those of its attributes, and those that the store keeps apart. */
export function extensionsOf(
  stored: StoredAttributes,
  own: {
    readonly version: number
    readonly key: string | null | undefined
    readonly tenant: string | null | undefined
  },
  where: string,
  malformed: Malformed,
): Extensions {
  const extensions: Record<string, ExtensionValue> = { eventversion: own.version }
  if (own.key !== null && own.key !== undefined) extensions['partitionkey'] = own.key
  if (own.tenant) extensions['tenantid'] = own.tenant
  for (const name in stored.extensions) {
    const value: unknown = stored.extensions[name]
    if (typeof value === 'string' || typeof value === 'number' || typeof value === 'boolean') extensions[name] = value
    else if (isObject(value) && typeof value['base64'] === 'string') {
      extensions[name] = new Uint8Array(Buffer.from(value['base64'], 'base64'))
    } else malformed(`${where}: extension ${describe(name)} is no string, number, boolean or bytes`)
  }
  return extensions
}

/**
 * The number of an event in a log as the CloudEvents extension `sequence`: with leading zeros, so that texts compare as the
 * numbers do, as CloudEvents asks.
 */
export function sequenceText(sequence: string): string {
  return sequence.padStart(19, '0')
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

const isText = (value: unknown): boolean => value === undefined || typeof value === 'string'
