import {
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  oneOf,
  WaybillError,
  wholeNumber,
} from '../../core/index.ts'
import type { StreamConfig } from './api.ts'

/** How to make a stream that is not there. One that is there must agree with it. */
export interface NatsStreamOptions {
  /** What it takes in: `['orders.>']`. */
  subjects: readonly string[]
  storage?: 'file' | 'memory'
  /** `limits` (default) keeps messages after they were handled; `interest` until every group has; `workqueue` until its one group has. */
  retention?: 'limits' | 'interest' | 'workqueue'
  /** When it is full: refuse what comes (`new`, default), or silently remove what is oldest, handled or not. */
  discard?: 'new' | 'old'
  replicas?: number
  /** Older messages are removed, handled or not. Default: none. */
  maxAge?: Duration
  maxMessages?: number
  maxBytes?: number
  maxMessageSize?: number
  /** How long a message id is remembered. Default 2 min. */
  duplicateWindow?: Duration
}

/** In a millisecond. */
export const NANOSECONDS = 1_000_000

/** As JetStream counts: whole ones. */
export function nanoseconds(value: Duration, where: string): number {
  return Math.round(milliseconds(value, where) * NANOSECONDS)
}

export function streamConfig(where: string, name: string, options: NatsStreamOptions): StreamConfig {
  checkOptions(where, options, [
    'subjects',
    'storage',
    'retention',
    'discard',
    'replicas',
    'maxAge',
    'maxMessages',
    'maxBytes',
    'maxMessageSize',
    'duplicateWindow',
  ] satisfies (keyof NatsStreamOptions)[])
  const { subjects, storage, retention, discard, replicas, maxAge, duplicateWindow } = options
  if (!Array.isArray(subjects) || subjects.length === 0) {
    throw new WaybillError('INVALID_OPTION', `${where}: subjects: name at least one, such as ['orders.>']`)
  }
  const limit = (option: 'maxMessages' | 'maxBytes' | 'maxMessageSize') =>
    options[option] === undefined ? -1 : wholeNumber(`${where}: ${option}`, options[option])
  return {
    name,
    subjects: subjects.map((subject) => checkedPattern(`${where}: subjects`, subject)),
    storage: oneOf(`${where}: storage`, storage ?? 'file', ['file', 'memory']),
    retention: oneOf(`${where}: retention`, retention ?? 'limits', ['limits', 'interest', 'workqueue']),
    discard: oneOf(`${where}: discard`, discard ?? 'new', ['new', 'old']),
    num_replicas: wholeNumber(`${where}: replicas`, replicas ?? 1, { max: 5 }),
    max_age: nanoseconds(maxAge ?? 0, `${where}: maxAge`),
    max_msgs: limit('maxMessages'),
    max_bytes: limit('maxBytes'),
    max_msg_size: limit('maxMessageSize'),
    duplicate_window: nanoseconds(duplicateWindow ?? '2m', `${where}: duplicateWindow`),
  }
}

/** Names of streams and consumers are parts of subjects. */
export function checkedName(where: string, name: unknown): string {
  if (typeof name === 'string' && /^[^\s.*>/\\]+$/.test(name)) return name
  const allowed = 'give text without spaces, dots, slashes, * and >'
  throw new WaybillError('INVALID_OPTION', `${where}: ${describe(name)} is not a name; ${allowed}`)
}

/** A subject to publish to. */
export function checkedSubject(where: string, subject: unknown): string {
  if (typeof subject === 'string' && /^[^\s.*>]+(\.[^\s.*>]+)*$/.test(subject)) return subject
  const allowed = 'give words parted by dots, without spaces, * and >'
  throw new WaybillError('INVALID_SUBJECT', `${where}: ${describe(subject)} is not a subject; ${allowed}`)
}

/** A subject, or several by wildcards. */
export function checkedPattern(where: string, subject: unknown): string {
  if (typeof subject === 'string' && /^([^\s.>]+\.)*([^\s.>]+|>)$/.test(subject)) return subject
  throw new WaybillError(
    'INVALID_OPTION',
    `${where}: ${describe(subject)} is not a subject, such as orders.> or orders.*.eu`,
  )
}

/** Whether a pattern takes a subject (or another pattern) in. */
export function covers(pattern: string, subject: string): boolean {
  const [wanted, given] = [pattern.split('.'), subject.split('.')]
  for (const [at, part] of wanted.entries()) {
    if (part === '>') return given.length > at
    if (given[at] === undefined || given[at] === '>' || (part !== '*' && part !== given[at])) return false
  }
  return wanted.length === given.length
}
