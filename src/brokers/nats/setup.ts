import {
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  oneOf,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../../core/index.ts'
import { headerBytes, JetStreamError } from '../../drivers/nats/nats.ts'
import type { ConsumerConfig, ConsumerInfo, JetStreamApi, StreamConfig, StreamInfo } from './api.ts'

/** The server refuses the user, as clients say it. */
export const REFUSED_LOGIN = /^(AuthorizationError|UserAuthenticationExpiredError)\b|authorization violation/i

/** The stream as it is: made when that was asked for and it was not there, otherwise compared with what was asked for. */
export async function ensureStream(
  api: JetStreamApi,
  where: string,
  name: string,
  wanted: StreamConfig | undefined,
): Promise<StreamInfo> {
  await api.checkEnabled(where)
  const found = (await api.stream(name)) ?? (wanted === undefined ? undefined : await create(api, where, wanted))
  if (found === undefined) {
    throw new WaybillError(
      'NO_STREAM',
      `${where}: there is no stream ${name}; make it, or let it be made by the option create: { subjects: […] }`,
    )
  }
  const { config } = found
  if (wanted !== undefined) compare(where, `stream ${name}`, config, wanted)
  if (config.mirror !== undefined)
    throw new WaybillError('WRONG_STREAM', `${where}: stream ${name} is a mirror, and takes nothing in`)
  if (config.no_ack) {
    const what = 'has no_ack set, so that nobody learns whether a message has arrived; remove it'
    throw new WaybillError('WRONG_STREAM', `${where}: stream ${name} ${what}`)
  }
  for (const danger of dangers(config)) warnOnce(where, `stream ${name}: ${danger}`)
  return found
}

async function create(api: JetStreamApi, where: string, wanted: StreamConfig): Promise<StreamInfo> {
  try {
    return await api.createStream({ ...wanted, allow_direct: true })
  } catch (error) {
    if (!(error instanceof JetStreamError)) throw error
    throw new WaybillError('WRONG_STREAM', `${where}: stream ${wanted.name} cannot be made: ${error.message}`, {
      cause: error,
    })
  }
}

/** What differs, all of it in one error: asking again for each would be a guessing game. */
function compare(where: string, what: string, is: object, wanted: object): void {
  const differences = Object.entries(wanted).flatMap(([name, value]) => {
    const found = (is as Record<string, unknown>)[name]
    return text(found) === text(value) ? [] : [`${name} is ${text(found)}, not ${text(value)}`]
  })
  if (differences.length === 0) return
  throw new WaybillError(
    'DIFFERENT_CONFIG',
    `${where}: ${what} exists and is different: ${differences.join('; ')}. Change it with your tools, or give options that match it`,
  )
}

function text(value: unknown): string {
  return value === undefined ? 'not set' : JSON.stringify(value)
}

/** Settings that lose what the server has acknowledged. */
function dangers(config: StreamConfig): string[] {
  const problems: string[] = []
  const limited = [config.max_msgs, config.max_bytes, config.max_msgs_per_subject].some((limit) => (limit ?? -1) > 0)
  if (limited && config.discard !== 'new') {
    problems.push('when it is full the oldest messages are removed, handled or not; set discard to new')
  }
  if ((config.max_age ?? 0) > 0) {
    const hours = Math.round(config.max_age! / NANOSECONDS / 36_000) / 100
    problems.push(`messages are removed after ${hours} h (max_age), handled or not: a group that is behind loses them`)
  }
  if (config.storage === 'memory')
    problems.push('it is kept in memory: what was acknowledged is lost when the server ends')
  return problems
}

/** Where dead letters go, and notes of what was given back: one message for each subject. */
export function deadStreamConfig(name: string, like: StreamConfig): StreamConfig {
  const { storage = 'file', num_replicas = 1 } = like
  return { name, subjects: [`${name}.>`], storage, num_replicas, max_msgs_per_subject: 1, retention: 'limits' }
}

export async function ensureDeadStream(
  api: JetStreamApi,
  where: string,
  name: string,
  like: StreamConfig,
  creates: boolean,
): Promise<void> {
  const wanted = deadStreamConfig(name, like)
  const found = (await api.stream(name)) ?? (creates ? await create(api, where, wanted) : undefined)
  if (found === undefined) {
    throw new WaybillError(
      'NO_STREAM',
      `${where}: there is no stream ${name} for dead letters; make it with subjects ${name}.> and max_msgs_per_subject 1, ` +
        'or let it be made by the option create: true',
    )
  }
  const problems = whyNoLetters(name, found.config)
  if (problems.length > 0) {
    const text = `${where}: stream ${name} cannot hold dead letters: ${problems.join('; ')}`
    throw new WaybillError('DIFFERENT_CONFIG', text)
  }
  const { discard, storage, max_age = 0, max_msgs = -1, max_bytes = -1 } = found.config
  if (max_age > 0 || (discard !== 'new' && Math.max(max_msgs, max_bytes) > 0))
    warnOnce(where, `stream ${name}: its limits remove dead letters that nobody has looked at`)
  if (storage === 'memory' && like.storage !== 'memory')
    warnOnce(where, `stream ${name}: it is kept in memory: dead letters are lost when the server ends`)
}

/** Letters must be stored, stay until a person has looked at them, and can then be removed; notes are written anew. */
function whyNoLetters(name: string, config: StreamConfig): string[] {
  const { subjects = [], max_msgs_per_subject: kept, retention } = config
  const problems: string[] = []
  if (!subjects.some((subject) => covers(subject, `${name}.>`)) || kept !== 1) {
    problems.push(
      `it must take the subjects ${name}.> and keep one message for each (max_msgs_per_subject 1), ` +
        `but takes ${subjects.join(', ') || 'none'} and keeps ${kept}`,
    )
  }
  if (retention === 'interest') problems.push('its retention is interest, which keeps only what a consumer waits for')
  if (config.no_ack) problems.push('it has no_ack set, so that nobody learns whether a letter has arrived')
  if (config.discard_new_per_subject)
    problems.push('it has discard_new_per_subject set, so that no note can be written anew')
  const sealed = (['sealed', 'deny_delete', 'deny_purge'] as const).filter((setting) => config[setting])
  if (sealed.length > 0) problems.push(`nothing can be removed from it (${sealed.join(', ')})`)
  return problems
}

/**
 * Where a group has its letters and notes, in the stream of its dead letters. That may serve several streams, and these
 * may have groups of the same name: neither name can hold a slash.
 */
export function besideSubject(
  { stream, dead, group }: { readonly stream: string; readonly dead: string; readonly group: string },
  kind: 'letter' | 'note' | 'start',
  place?: string,
): string {
  const owner = dead === defaultDeadOf(stream) ? group : `${stream}/${group}`
  return place === undefined ? `${dead}.${kind}.${owner}` : `${dead}.${kind}.${owner}.${place}`
}

/** The stream for dead letters, where no other is named. */
export function defaultDeadOf(stream: string): string {
  return `${stream}-dead`
}

/**
 * A group that begins with what comes (`start: 'new'`) notes where that was, beside its dead letters: a consumer that was
 * deleted and is made again begins there. With what comes now, all that was pending or came meanwhile would be lost.
 */
export async function withStart(
  api: JetStreamApi,
  settings: { readonly stream: string; readonly dead: string; readonly group: string },
  { created = '', state }: StreamInfo,
  wanted: WantedConsumer,
): Promise<WantedConsumer> {
  if (wanted.config.deliver_policy !== 'new' || !wanted.creates) return wanted
  const { stream, dead, group } = settings
  const subject = besideSubject(settings, 'start')
  const known = await api.consumer(stream, group)
  let noted = await api.message(dead, { last_by_subj: subject })
  let first = known === undefined ? (state.last_seq ?? 0) + 1 : known.config.opt_start_seq
  if (noted === undefined && first !== undefined) {
    // Whoever has purged the dead letters has removed the note with them: the consumer still knows.
    const [error] = await api.store(dead, [{ subject, data: `${first} ${created}`, headers: UNLESS_THERE }])
    // Members that begin at once begin at one place: that of the first to note it.
    if (error !== undefined) noted = await api.message(dead, { last_by_subj: subject })
    if (error !== undefined && noted === undefined && known === undefined) throw error
  }
  if (known !== undefined) return wanted
  if (noted !== undefined) {
    const [sequence, of] = Buffer.from(noted.data ?? '', 'base64')
      .toString()
      .split(' ')
    // Of a stream that was made again nothing was handled.
    first = of === created ? Number(sequence) : 1
  }
  return { ...wanted, config: { ...wanted.config, deliver_policy: 'by_start_sequence', opt_start_seq: first! } }
}

/** Refuses a message where its subject has one. */
const UNLESS_THERE = headerBytes([['Nats-Expected-Last-Subject-Sequence', '0']])

export interface WantedConsumer {
  readonly config: ConsumerConfig
  /** What was said, and must be so where the consumer exists; the rest is only for making it. */
  readonly said: Partial<ConsumerConfig>
  readonly creates: boolean
}

/** The durable consumer, made or compared. Returns it, and whether it was made now. */
export async function ensureConsumer(
  api: JetStreamApi,
  where: string,
  stream: string,
  { config, said, creates }: WantedConsumer,
): Promise<{ info: ConsumerInfo; made: boolean }> {
  const name = config.durable_name!
  const found = await api.consumer(stream, name)
  if (found === undefined && !creates) {
    throw new WaybillError(
      'NO_CONSUMER',
      `${where}: stream ${stream} has no consumer ${name}; make a durable pull consumer with explicit acks and max_deliver -1, ` +
        'or let it be made by the option create: true',
    )
  }
  const info = found ?? (await api.createConsumer(stream, config))
  const { deliver_subject, ack_policy, max_deliver = -1, filter_subjects, headers_only } = info.config
  const problems: string[] = []
  if (deliver_subject !== undefined) problems.push('it pushes (deliver_subject), and must be a pull consumer')
  if (ack_policy !== 'explicit') problems.push(`its ack_policy is ${ack_policy}, and must be explicit`)
  if (max_deliver !== -1) {
    problems.push(
      `its max_deliver is ${max_deliver}: after so many deliveries JetStream delivers a message no more, and reports it in an ` +
        'advisory only. It must be -1; attempts are counted here',
    )
  }
  if (filter_subjects !== undefined) problems.push('it has filter_subjects; only one filter_subject is known here')
  if (headers_only) problems.push('it has headers_only set: messages would be handled without their data')
  if (problems.length > 0) {
    throw new WaybillError('DIFFERENT_CONFIG', `${where}: consumer ${name} cannot be used: ${problems.join('; ')}`)
  }
  if (found !== undefined) compare(where, `consumer ${name}`, found.config, said)
  const { inactive_threshold: idle = 0 } = info.config
  if (idle > 0) {
    const what = `is deleted when nobody has read from it for ${idle / NANOSECONDS / 1000} s (inactive_threshold), and nobody knows then what was handled`
    warnOnce(where, `consumer ${name} ${what}; make it without`)
  }
  return { info, made: found === undefined }
}

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
  /** How long a message id is remembered. Default 2 min, or `maxAge` where that is shorter. */
  duplicateWindow?: Duration
}

/** In a millisecond. */
export const NANOSECONDS = 1_000_000

/** As JetStream counts: whole ones. */
export function nanoseconds(value: Duration, where: string): number {
  return Math.round(milliseconds(value, where) * NANOSECONDS)
}

export function streamConfig(where: string, name: string, options: NatsStreamOptions): StreamConfig {
  checkOptions(where, options, {
    subjects: true,
    storage: true,
    retention: true,
    discard: true,
    replicas: true,
    maxAge: true,
    maxMessages: true,
    maxBytes: true,
    maxMessageSize: true,
    duplicateWindow: true,
  })
  const { subjects, storage, retention, discard, replicas, maxAge, duplicateWindow } = options
  if (!Array.isArray(subjects) || subjects.length === 0) {
    throw new WaybillError('INVALID_OPTION', `${where}: subjects: name at least one, such as ['orders.>']`)
  }
  const limit = (option: 'maxMessages' | 'maxBytes' | 'maxMessageSize') =>
    options[option] === undefined ? -1 : wholeNumber(`${where}: ${option}`, options[option])
  const age = nanoseconds(maxAge ?? 0, `${where}: maxAge`)
  // The server takes none that is longer than the age.
  const usual = Math.min(nanoseconds('2m', where), age || Number.POSITIVE_INFINITY)
  return {
    name,
    subjects: subjects.map((subject) => checkedPattern(`${where}: subjects`, subject)),
    storage: oneOf(`${where}: storage`, storage ?? 'file', ['file', 'memory']),
    retention: oneOf(`${where}: retention`, retention ?? 'limits', ['limits', 'interest', 'workqueue']),
    discard: oneOf(`${where}: discard`, discard ?? 'new', ['new', 'old']),
    num_replicas: wholeNumber(`${where}: replicas`, replicas ?? 1, { max: 5 }),
    max_age: age,
    max_msgs: limit('maxMessages'),
    max_bytes: limit('maxBytes'),
    max_msg_size: limit('maxMessageSize'),
    duplicate_window: duplicateWindow === undefined ? usual : nanoseconds(duplicateWindow, `${where}: duplicateWindow`),
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
