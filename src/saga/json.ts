import { WaybillError } from '../core/index.ts'

type Fn = (...args: never[]) => unknown
type Dropped = Fn | symbol | undefined

/**
 * What a value is after JSON: a `Date` is text, a `Map` is empty, methods are gone. Inputs and results are handed on like
 * this from the start, so that they do not change their type with the first crash.
 */
export type Json<T> = unknown extends T
  ? T
  : T extends string | number | boolean | null | undefined
    ? T
    : [T] extends [void]
      ? undefined
      : T extends { toJSON(...args: never[]): infer Text }
        ? Json<Text>
        : T extends bigint | symbol | Fn
          ? never
          : T extends ReadonlyMap<unknown, unknown> | ReadonlySet<unknown>
            ? Record<string, never>
            : T extends readonly unknown[]
              ? { [Index in keyof T]: Json<T[Index]> }
              : { [Key in keyof T as Key extends symbol ? never : T[Key] extends Dropped ? never : Key]: Json<T[Key]> }

/** Text that a store can keep, and the value as it comes back from it. */
export interface Stored {
  /** `undefined` where there is no value. */
  readonly text: string | undefined
  readonly value: unknown
}

/** A NUL, or half a character: PostgreSQL refuses both in JSON. */
const UNSTORABLE = /(?<!\\)(?:\\\\)*\\u(?:0000|d[89ab][0-9a-f]{2}(?!\\ud[c-f])|d[c-f])/i

/** `what` is for the error. Throws NOT_SERIALISABLE for what JSON cannot hold, and TOO_LARGE beyond `most` bytes. */
export function stored(value: unknown, what: string, most: number): Stored {
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    // The message of a cycle shows property names; those are no data.
    throw new WaybillError('NOT_SERIALISABLE', `${what} cannot be written as JSON`, { cause: error })
  }
  if (text === undefined) {
    if (value === undefined) return { text, value }
    throw new WaybillError('NOT_SERIALISABLE', `${what} is a ${typeof value}, which JSON cannot hold`)
  }
  const bytes = Buffer.byteLength(text)
  if (bytes > most) {
    const advice = 'keep it elsewhere and hand on where'
    throw new WaybillError('TOO_LARGE', `${what} has ${bytes} bytes, and ${most} are allowed; ${advice}`)
  }
  if (text.includes('\\u') && UNSTORABLE.test(text)) {
    throw new WaybillError('NOT_SERIALISABLE', `${what} holds a NUL or half a character, which stores refuse`)
  }
  return { text, value: JSON.parse(text) }
}
