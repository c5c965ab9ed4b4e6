import type { Attributes, Extensions, ExtensionValue } from './attributes.ts'

/** A name for a value that stays in this process. Two locals of the same name are two locals. */
export interface Local<T> {
  readonly name: string
  readonly type?: T
}

/** A value that travels with a message inside this process and never reaches the wire. */
export function local<T>(name: string): Local<T> {
  return { name }
}

const NO_EXTENSIONS: Extensions = Object.freeze({})

/**
 * What `data` is:
 * - `value`: the value itself, whatever its type, a string too;
 * - `raw`: text or bytes still encoded as `datacontenttype` says;
 * - `json`: JSON text that is known to be well-formed, because a parser or a serialiser has seen it.
 *
 * Unless it is given, a message made with a string or bytes is `raw` and any other is `value`.
 */
export type Form = 'value' | 'raw' | 'json'

/**
 * A message is a CloudEvents 1.0 event: attributes and data. It never changes; `with` makes a changed copy.
 * Locals are values that travel with the message inside one process (a span, a deadline) and never reach the wire.
 */
export class Message<Data = unknown> {
  readonly id: string
  readonly source: string
  readonly type: string
  readonly subject: string | undefined
  readonly time: string | undefined
  readonly datacontenttype: string | undefined
  readonly dataschema: string | undefined
  readonly extensions: Extensions
  readonly data: Data
  readonly form: Form
  /** The version of an event that has vouched for `data`. */
  readonly #checkedBy: object | undefined
  #parsed: { readonly value: unknown } | undefined
  #locals: Map<Local<unknown>, unknown> | undefined

  constructor(attributes: Attributes, data: Data, form: Form = formOf(data), checkedBy?: object) {
    this.id = attributes.id
    this.source = attributes.source
    this.type = attributes.type
    this.subject = attributes.subject
    this.time = attributes.time
    this.datacontenttype = attributes.datacontenttype
    this.dataschema = attributes.dataschema
    this.extensions = attributes.extensions ?? NO_EXTENSIONS
    this.data = data
    this.form = form
    this.#checkedBy = checkedBy
  }

  /** Messages of one key are handled one at a time, in order. */
  get key(): string | undefined {
    return text(this.extensions['partitionkey'])
  }

  get tenant(): string | undefined {
    return text(this.extensions['tenantid'])
  }

  /** The version of the event's schema; 1 where none is given. */
  get version(): number {
    const version = Number(this.extensions['eventversion'] ?? 1)
    return Number.isSafeInteger(version) && version > 0 ? version : 1
  }

  /** A copy with some attributes replaced (extensions are merged; `undefined` removes one). Locals come along. */
  with(changes: Partial<Attributes>): Message<Data> {
    const extensions = changes.extensions === undefined ? this.extensions : merge(this.extensions, changes.extensions)
    const sameEvent = changes.type === undefined && !('eventversion' in (changes.extensions ?? NO_EXTENSIONS))
    const attributes = { ...this.attributes(), ...changes, extensions }
    return this.#copy(attributes, this.data, this.form, sameEvent ? this.#checkedBy : undefined)
  }

  /** A copy with other data. Locals come along. Text put in place of a value is a value, unless `form` says otherwise. */
  withData<Other>(data: Other, form: Form = this.form === 'value' ? 'value' : formOf(data)): Message<Other> {
    return this.#copy(this, data, form, undefined)
  }

  /** Whether `checked` was called with the same `by`, so that nobody validates twice. */
  isCheckedBy(by: object): boolean {
    return this.#checkedBy === by
  }

  /** A copy whose data an event definition vouches for, as a value of `version`, if that is another. Locals come along. */
  checked<Other>(data: Other, by: object, version?: number): Message<Other> {
    if (version === undefined) return this.#copy(this, data, 'value', by)
    const extensions = { ...this.extensions, eventversion: version }
    return this.#copy({ ...this.attributes(), extensions }, data, 'value', by)
  }

  /** Keeps what a reader has parsed of the data anyway. */
  remember(value: unknown): this {
    this.#parsed = { value }
    return this
  }

  /** What was remembered, once: whoever has it may change it. */
  recall(): { readonly value: unknown } | undefined {
    const parsed = this.#parsed
    this.#parsed = undefined
    return parsed
  }

  attributes(): Attributes {
    const { id, source, type, subject, time, datacontenttype, dataschema, extensions } = this
    return { id, source, type, subject, time, datacontenttype, dataschema, extensions }
  }

  local<T>(key: Local<T>): T | undefined {
    return this.#locals?.get(key) as T | undefined
  }

  setLocal<T>(key: Local<T>, value: T): void {
    this.#locals ??= new Map()
    this.#locals.set(key, value)
  }

  /** Without the data: a message in a log or an error must not show its payload. */
  toString(): string {
    return `${this.type} ${this.id}`
  }

  [Symbol.for('nodejs.util.inspect.custom')](): string {
    return `Message(${this.toString()})`
  }

  #copy<Other>(attributes: Attributes, data: Other, form: Form, checkedBy: object | undefined): Message<Other> {
    const copy = new Message(attributes, data, form, checkedBy)
    if (this.#locals !== undefined) copy.#locals = new Map(this.#locals)
    return copy
  }
}

/** A message whose data is still encoded: text (JSON, mostly) or bytes, as `datacontenttype` says. */
export type RawMessage = Message<string | Uint8Array>

/** Whether it can be read as a message: callers without types may give anything. */
export function isMessage(given: unknown): given is Message {
  const { id, type, local } = (given ?? {}) as Partial<Message>
  return typeof id === 'string' && typeof type === 'string' && typeof local === 'function'
}

export function isRaw(message: Message): message is RawMessage {
  return message.form !== 'value'
}

function formOf(data: unknown): Form {
  return typeof data === 'string' || data instanceof Uint8Array ? 'raw' : 'value'
}

function text(value: ExtensionValue | undefined): string | undefined {
  return value === undefined || value === '' ? undefined : String(value)
}

function merge(base: Extensions, changes: Extensions): Extensions {
  const merged: Record<string, ExtensionValue> = { ...base, ...changes }
  for (const name of Object.keys(merged)) if (merged[name] === undefined) delete merged[name]
  return merged
}
