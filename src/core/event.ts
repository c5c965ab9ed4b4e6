import {
  type Attributes,
  checkAttributes,
  checkContext,
  checkValues,
  type Extensions,
  type ExtensionValue,
} from './attributes.ts'
import { decodeData } from './data.ts'
import { WaybillError } from './errors.ts'
import { uuidv7 } from './id.ts'
import { Message } from './message.ts'
import { checkOptions, describe, type OptionNames } from './options.ts'
import {
  isSchema,
  issueList,
  type SchemaInput,
  type SchemaOutput,
  type SchemaResult,
  type StandardSchema,
} from './schema.ts'

/** What a handler is registered with: an event, or one version of it. */
export interface EventKey<Output = unknown> {
  readonly type: string
  /** The version `decode` gives: the newest known, or for `.v(n)` that one. */
  readonly target: number
  /** True for `.v(n)`. */
  readonly exact: boolean
  /** By the name of the type alone. */
  is(message: Message): message is Message<Output>
  /**
   * The message with its data as a validated value of the target version: the schema of the message's own version
   * is applied, then upcasters one by one. `eventversion` then says the target. A promise only where a schema or an
   * upcaster is asynchronous. INVALID_PAYLOAD when the schema refuses, NO_VERSION when no way leads to the target.
   */
  decode(message: Message, onNewer?: OnNewer): Message<Output> | Promise<Message<Output>>
}

/** Also a factory of messages of that version. */
export interface EventVersion<Input = unknown, Output = Input> extends EventKey<Output> {
  /** Validates and makes the message now. A schema that returns a promise is ASYNC_SCHEMA: use `create`. */
  (data: Input, options?: MessageOptions): Message<Output>
  /** The same for asynchronous schemas. */
  create(data: Input, options?: MessageOptions): Promise<Message<Output>>
}

type Versions = Record<number, { input: unknown; output: unknown }>

/** An event that both ends share: call it to make a message, give it to `router.on()` to handle one. */
export interface EventDefinition<Known extends Versions, Newest extends keyof Known & number>
  extends EventVersion<Known[Newest]['input'], Known[Newest]['output']> {
  readonly newest: Newest
  /** One version: a key for a handler of exactly that version, and a factory of it. */
  v<Version extends keyof Known & number>(
    version: Version,
  ): EventVersion<Known[Version]['input'], Known[Version]['output']>
  /** This event with one more version, newer than all before. The upcaster makes its data from the version before. */
  version<Version extends number, Schema extends StandardSchema>(
    version: Version,
    schema: Schema,
    upcast?: (data: Known[Newest]['output']) => SchemaInput<Schema> | Promise<SchemaInput<Schema>>,
  ): EventDefinition<Known & OfVersion<Version, SchemaInput<Schema>, SchemaOutput<Schema>>, Version>
  version<Version extends number, Data>(
    version: Version,
    schema: undefined,
    upcast?: (data: Known[Newest]['output']) => Data | Promise<Data>,
  ): EventDefinition<Known & OfVersion<Version, Data, Data>, Version>
}

type OfVersion<Version extends number, Input, Output> = { [Key in Version]: { input: Input; output: Output } }

/** The data a handler of this event is given. */
export type EventData<Event extends EventKey> = Event extends EventKey<infer Output> ? Output : never

export interface EventOptions {
  /** Default: `/` and the name up to its first dot, so `order.placed` comes from `/order`. */
  source?: string
  dataschema?: string
}

/** What may be said of one message when it is made: id, key, time, tenant, extensions and the like. */
export interface MessageOptions {
  /** Default: a UUID of version 7. */
  id?: string
  source?: string
  subject?: string
  /** Default: now. */
  time?: string | Date
  /** Messages of one key are handled in order. Becomes the extension `partitionkey`. */
  key?: string
  /** Becomes the extension `tenantid`. */
  tenant?: string
  /** `eventversion` is always the event's own. */
  extensions?: Extensions
}

const MESSAGE_OPTIONS: OptionNames<MessageOptions> = {
  id: true,
  source: true,
  subject: true,
  time: true,
  key: true,
  tenant: true,
  extensions: true,
}

/**
 * A kind of event, known to both ends: its name, its schema (Zod, Valibot, ArkType, …) and its versions.
 *
 * What the schema gives is what travels, and the receiving end applies the schema again: a schema must accept its
 * own result (defaults, trimming and `coerce` do; a transform from string to number does not). Every message says
 * its version in `eventversion`; one that says none is of version 1. Without a schema, data is typed but unchecked.
 */
export function event<Schema extends StandardSchema>(
  type: string,
  schema: Schema,
  options?: EventOptions,
): EventDefinition<OfVersion<1, SchemaInput<Schema>, SchemaOutput<Schema>>, 1>
export function event<Data = unknown>(
  type: string,
  schema?: undefined,
  options?: EventOptions,
): EventDefinition<OfVersion<1, Data, Data>, 1>
export function event(type: string, schema?: StandardSchema, options: EventOptions = {}): unknown {
  checkName(type)
  const where = `event ${describe(type)}`
  checkOptions(where, options, { source: true, dataschema: true })
  const family: Family = { type, source: options.source ?? defaultSource(type), dataschema: options.dataschema }
  checkContext({ id: 'x', ...family })
  checkValues({ id: 'x', ...family })
  return define(family, [eventSchema(where, 1, schema)])
}

interface Family {
  readonly type: string
  readonly source: string
  readonly dataschema: string | undefined
}

function define(family: Family, versions: readonly EventSchema[]): EventDefinition<Versions, number> {
  const newest = versions[versions.length - 1]!
  const where = `event ${describe(family.type)}`
  const definition = Object.assign(view(family, versions, newest, false), {
    newest: newest.version,
    v(version: number) {
      const found = versions.find((known) => known.version === version)
      if (found !== undefined) return view(family, versions, found, true)
      const known = versions.map((one) => one.version).join(', ')
      throw new WaybillError('NO_VERSION', `${where}: version ${describe(version)} is not defined. Known: ${known}`)
    },
    version(version: number, schema: unknown, upcast?: unknown) {
      if (!Number.isSafeInteger(version) || version <= newest.version) {
        const text = `${where}: version ${describe(version)} must be a whole number greater than ${newest.version}`
        throw new WaybillError('INVALID_OPTION', text)
      }
      return define(family, [...versions, eventSchema(where, version, schema, upcast)])
    },
  })
  return definition as EventDefinition<Versions, number>
}

function view(
  family: Family,
  versions: readonly EventSchema[],
  target: EventSchema,
  exact: boolean,
): EventVersion<unknown, unknown> {
  const { type } = family
  const { schema, version } = target
  const make = (data: unknown, options?: MessageOptions): Message => {
    const attributes = compose(family, target, options)
    const value = schema === undefined ? data : validate(schema, attributes, data, version)
    if (!(value instanceof Promise)) return new Message(attributes, value, 'value', target)
    value.catch(() => {})
    const text = `${type}: the schema of version ${version} is asynchronous; use await create(…) instead of a call`
    throw new WaybillError('ASYNC_SCHEMA', text)
  }
  return Object.assign(make, {
    type,
    target: version,
    exact,
    is: (message: Message): message is Message => message.type === type,
    async create(data: unknown, options?: MessageOptions) {
      const attributes = compose(family, target, options)
      const value = schema === undefined ? data : await validate(schema, attributes, data, version)
      return new Message(attributes, value, 'value', target)
    },
    decode(message: Message, onNewer?: OnNewer) {
      if (message.isCheckedBy(target)) return message
      return decode(type, versions, target, message, onNewer)
    },
  })
}

/** The attributes of a new message. Only what the caller gives can be wrong, and only that is checked. */
function compose(family: Family, target: EventSchema, options: MessageOptions | undefined): Attributes {
  const { type, source, dataschema } = family
  if (options === undefined)
    return { id: uuidv7(), source, type, time: now(), dataschema, extensions: target.extensions }
  checkOptions(type, options, MESSAGE_OPTIONS)
  const extensions: Record<string, ExtensionValue> = { ...options.extensions, ...target.extensions }
  if (options.key !== undefined) extensions['partitionkey'] = options.key
  if (options.tenant !== undefined) extensions['tenantid'] = options.tenant
  const attributes: Attributes = {
    id: options.id ?? uuidv7(),
    source: options.source ?? source,
    type,
    subject: options.subject,
    time: timeText(options.time),
    dataschema,
    extensions,
  }
  checkAttributes(attributes)
  checkValues(attributes)
  return attributes
}

function timeText(time: string | Date | undefined): string {
  if (time === undefined) return now()
  if (!(time instanceof Date)) return time
  return Number.isNaN(time.getTime()) ? 'Invalid Date' : time.toISOString()
}

// Thousands of messages are made within a millisecond; its text is made once.
let lastTime = 0
let lastText = ''

function now(): string {
  const time = Date.now()
  if (time !== lastTime || lastText === '') {
    lastTime = time
    lastText = new Date(time).toISOString()
  }
  return lastText
}

const MAX_NAME = 255

/** The first part of the type, as a URI can hold it. */
function defaultSource(type: string): string {
  const part = type.split('.', 1)[0]!.replace(/\p{Cs}/gu, '\ufffd')
  return `/${encodeURIComponent(part)}`
}

function checkName(type: string): void {
  const sound = typeof type === 'string' && type.length > 0 && type.length <= MAX_NAME && !/[\s\p{Cc}]/u.test(type)
  if (sound) return
  const rule = `an event's name is 1 to ${MAX_NAME} characters without spaces or control characters, such as 'order.placed'`
  throw new WaybillError('INVALID_OPTION', `event ${describe(type)}: ${rule}`)
}

/** One version of an event, and how to reach it from the version before. */
interface EventSchema {
  readonly version: number
  readonly schema: StandardSchema | undefined
  readonly upcast: ((data: unknown) => unknown) | undefined
  /** What a message carries that was given no extensions. */
  readonly extensions: Extensions
}

function eventSchema(where: string, version: number, schema: unknown, upcast?: unknown): EventSchema {
  if (schema !== undefined && !isSchema(schema)) {
    const text = `${where}: the schema of version ${version} is ${describe(schema)}; give one that implements Standard Schema`
    throw new WaybillError('INVALID_OPTION', text)
  }
  if (upcast !== undefined && typeof upcast !== 'function') {
    throw new WaybillError('INVALID_OPTION', `${where}: the upcaster of version ${version} must be a function`)
  }
  const extensions = Object.freeze({ eventversion: version })
  return { version, schema, upcast: upcast as EventSchema['upcast'], extensions }
}

/** Called when a message is of a version newer than any known here; its data was tried with the newest schema. */
export type OnNewer = (message: Message, newestKnown: number) => void

/** The message with its data as a value of the target's version. */
function decode(
  type: string,
  versions: readonly EventSchema[],
  target: EventSchema,
  message: Message,
  onNewer: OnNewer | undefined,
): Message | Promise<Message> {
  if (message.type !== type) {
    throw new WaybillError('WRONG_TYPE', `${message}: it is not a message of ${describe(type)}`)
  }
  const last = versions.length - 1
  const newest = versions[last]!
  const { version } = message
  let start = last
  if (version > newest.version) onNewer?.(message, newest.version)
  else if (version < newest.version) start = versions.findIndex((known) => known.version === version)
  const to = target === newest ? last : versions.indexOf(target)
  if (start < 0 || start > to) noWay(versions, target, message)
  for (let at = start + 1; at <= to; at++) if (versions[at]!.upcast === undefined) noWay(versions, target, message)
  const value = climb(versions, start, to, message, decodeData(message))
  const raised = version === target.version ? undefined : target.version
  if (value instanceof Promise) return value.then((data) => message.checked(data, target, raised))
  return message.checked(value, target, raised)
}

function noWay(versions: readonly EventSchema[], target: EventSchema, message: Message): never {
  const known = versions.map((one) => one.version).join(', ')
  const text = `${message}: no upcasters lead from version ${message.version} to version ${target.version}. Known: ${known}`
  throw new WaybillError('NO_VERSION', text)
}

/** Validates `value` as the version of `versions[at]`, and upcasts until that of `versions[to]`. */
function climb(versions: readonly EventSchema[], at: number, to: number, message: Message, value: unknown): unknown {
  const { schema, version } = versions[at]!
  const valid = schema === undefined ? value : validate(schema, message, value, version)
  if (at === to) return valid
  const next = (data: unknown) => {
    const raised = raise(versions[at + 1]!, message, data)
    return raised instanceof Promise
      ? raised.then((newer) => climb(versions, at + 1, to, message, newer))
      : climb(versions, at + 1, to, message, raised)
  }
  return valid instanceof Promise ? valid.then(next) : next(valid)
}

function raise(to: EventSchema, message: Message, data: unknown): unknown {
  const failed = (cause: unknown): never => {
    throw new WaybillError('UPCAST_FAILED', `${message}: the upcaster to version ${to.version} failed`, { cause })
  }
  try {
    const raised = to.upcast!(data)
    return raised instanceof Promise ? raised.catch(failed) : raised
  } catch (cause) {
    return failed(cause)
  }
}

/** What an error calls a message: never its data. */
interface Named {
  readonly type: string
  readonly id: string
}

/** What the schema makes of `value`; a promise only when the schema returns one. */
function validate(schema: StandardSchema, of: Named, value: unknown, version: number): unknown {
  let result: SchemaResult<unknown> | Promise<SchemaResult<unknown>>
  try {
    result = schema['~standard'].validate(value)
  } catch (cause) {
    throw schemaFailed(of, version, cause)
  }
  if (!(result instanceof Promise)) return accept(result, of, value, version)
  return result.then(
    (settled) => accept(settled, of, value, version),
    (cause) => {
      throw schemaFailed(of, version, cause)
    },
  )
}

// Not INVALID_PAYLOAD: the cause decides, and a schema that asks a database may succeed the next time.
function schemaFailed(of: Named, version: number, cause: unknown): WaybillError {
  return new WaybillError('SCHEMA_FAILED', `${of.type} ${of.id}: the schema of version ${version} threw`, { cause })
}

function accept(result: SchemaResult<unknown>, of: Named, value: unknown, version: number): unknown {
  if (result.issues === undefined) return result.value
  const text = `${of.type} ${of.id}: the data is not of version ${version}: ${issueList(result.issues, value)}`
  throw new WaybillError('INVALID_PAYLOAD', text)
}
