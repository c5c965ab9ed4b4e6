import type { Extensions } from './attributes.ts'
import { decodeData } from './data.ts'
import { WaybillError } from './errors.ts'
import type { Message } from './message.ts'
import { describe } from './options.ts'
import { isSchema, issueList, type SchemaResult, type StandardSchema } from './schema.ts'

/** One version of an event, and how to reach it from the version before. */
export interface Step {
  readonly version: number
  readonly schema: StandardSchema | undefined
  readonly upcast: ((data: unknown) => unknown) | undefined
  /** What a message carries that was given no extensions. */
  readonly extensions: Extensions
}

export function step(where: string, version: number, schema: unknown, upcast?: unknown): Step {
  if (schema !== undefined && !isSchema(schema)) {
    const text = `${where}: the schema of version ${version} is ${describe(schema)}; give one that implements Standard Schema`
    throw new WaybillError('INVALID_OPTION', text)
  }
  if (upcast !== undefined && typeof upcast !== 'function') {
    throw new WaybillError('INVALID_OPTION', `${where}: the upcaster of version ${version} must be a function`)
  }
  const extensions = Object.freeze({ eventversion: version })
  return { version, schema, upcast: upcast as Step['upcast'], extensions }
}

/** Told when a message is of a version newer than any known here; its data was tried with the newest schema. */
export type OnNewer = (message: Message, newestKnown: number) => void

/** The message with its data as a value of the target's version. */
export function decode(
  type: string,
  steps: readonly Step[],
  target: Step,
  message: Message,
  onNewer: OnNewer | undefined,
): Message | Promise<Message> {
  if (message.type !== type) {
    throw new WaybillError('WRONG_TYPE', `${message}: it is not a message of ${describe(type)}`)
  }
  const last = steps.length - 1
  const newest = steps[last]!
  const { version } = message
  let start = last
  if (version > newest.version) onNewer?.(message, newest.version)
  else if (version < newest.version) start = steps.findIndex((known) => known.version === version)
  const to = target === newest ? last : steps.indexOf(target)
  if (start < 0 || start > to) noWay(steps, target, message)
  for (let at = start + 1; at <= to; at++) if (steps[at]!.upcast === undefined) noWay(steps, target, message)
  const value = climb(steps, start, to, message, decodeData(message))
  const raised = version === target.version ? undefined : target.version
  if (value instanceof Promise) return value.then((data) => message.checked(data, target, raised))
  return message.checked(value, target, raised)
}

function noWay(steps: readonly Step[], target: Step, message: Message): never {
  const known = steps.map((one) => one.version).join(', ')
  const text = `${message}: no way leads from version ${message.version} to version ${target.version}. Known: ${known}`
  throw new WaybillError('NO_VERSION', text)
}

/** Validates `value` as the version of `steps[at]`, and upcasts until that of `steps[to]`. */
function climb(steps: readonly Step[], at: number, to: number, message: Message, value: unknown): unknown {
  const { schema, version } = steps[at]!
  const valid = schema === undefined ? value : validate(schema, message, value, version)
  if (at === to) return valid
  const next = (data: unknown) => {
    const raised = raise(steps[at + 1]!, message, data)
    return raised instanceof Promise
      ? raised.then((newer) => climb(steps, at + 1, to, message, newer))
      : climb(steps, at + 1, to, message, raised)
  }
  return valid instanceof Promise ? valid.then(next) : next(valid)
}

function raise(to: Step, message: Message, data: unknown): unknown {
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

/** What the schema makes of `value`; a promise only when the schema answers with one. */
export function validate(schema: StandardSchema, of: Named, value: unknown, version: number): unknown {
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
