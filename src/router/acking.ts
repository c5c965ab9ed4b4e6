import { isThenable, type Local, local, type Message, wholeNumber } from '../core/index.ts'

/** Ack or nack of one message. Whichever comes first counts; everything later is ignored and returns `false`. */
export interface Acking {
  /** The message is handled. */
  ack(): boolean
  /** It is not; `error` says why, and decides whether it is tried again. */
  nack(error: unknown): boolean
  readonly settled: 'ack' | 'nack' | undefined
}

/**
 * Acking over callbacks. They may be async and may fail; a failure goes to `onFailure` and is never swallowed.
 * Nothing here listens to an abort signal: a cancelled receive must not stop the ack of finished work.
 */
export function acking(
  onAck: () => unknown,
  onNack: (error: unknown) => unknown,
  onFailure: (error: unknown) => void,
): Acking {
  let settled: 'ack' | 'nack' | undefined
  const settle = (how: 'ack' | 'nack', callback: () => unknown): boolean => {
    if (settled !== undefined) return false
    settled = how
    try {
      const result = callback()
      // Query builders return thenables that are no Promise.
      if (isThenable(result)) result.then(undefined, onFailure)
    } catch (error) {
      onFailure(error)
    }
    return true
  }
  return {
    ack: () => settle('ack', onAck),
    nack: (error) => settle('nack', () => onNack(error)),
    get settled() {
      return settled
    },
  }
}

/**
 * One acking shared by `count` parts of a fan-out: it acks when every part has, and the first nack settles it at
 * once. With no parts it acks now. Each part settles once of its own.
 */
export function sharedAcking(whole: Acking, count: number): Acking[] {
  wholeNumber('sharedAcking: count', count, { min: 0 })
  if (count === 0) whole.ack()
  let waiting = count
  return Array.from({ length: count }, () =>
    acking(
      () => {
        waiting--
        if (waiting === 0) whole.ack()
      },
      (error) => whole.nack(error),
      (error) => whole.nack(error),
    ),
  )
}

/** Under which a message carries its ack. */
export const ACKING: Local<Acking> = local('acking')

/** The ack that an output carries for the input it came from; `undefined` where it carries none. */
export function ackingOf(message: Message): Acking | undefined {
  return message.local(ACKING)
}
