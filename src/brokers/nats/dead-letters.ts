import { checkOptions, MAX_ERROR_LENGTH, type RawMessage, WaybillError, wholeNumber } from '../../core/index.ts'
import { headerBytes, headerEntries, writableHeaders } from '../../drivers/nats/nats.ts'
import { HEADER_BYTES, type JetStreamApi, type StoredMessage } from './api.ts'
import type { DeadMessage, GroupSettings } from './member.ts'
import { besideSubject } from './setup.ts'

/** A message that was given up: as it came, and why. */
export interface NatsDeadLetter {
  /** The dead letter's own id, for `rearm` and `discard`. */
  readonly id: string
  readonly stream: string
  readonly group: string
  readonly subject: string
  /** The number the message had in its stream. */
  readonly sequence: number
  readonly reason: string
  readonly attempts: number
  /** As they came. Of a name that occurs twice, the last. */
  readonly headers: Readonly<Record<string, string>>
  readonly data: Buffer
  /** Absent when it cannot be decoded: that is why some are here. */
  readonly message: RawMessage | undefined
}

export interface DeadLetterOptions {
  /** How many at most. Default 100. */
  readonly count?: number
  /** Dead letters after this one. */
  readonly after?: string
}

/** Headers of ours. */
const OURS = 'Waybill-'
/** Headers that mean something to the server: in a dead letter they would take effect again. */
const SERVERS = 'Nats-'
const KEPT = `${OURS}${SERVERS}`
/** Names the only group a message is for. */
export const ONLY = `${OURS}Only`

export function letterHeaders(
  settings: GroupSettings,
  { delivery, reason, attempts }: DeadMessage,
): [string, string][] {
  const said = {
    Reason: reason.replace(/[\r\n]+/g, ' ').slice(0, MAX_ERROR_LENGTH),
    Attempts: String(attempts),
    Stream: settings.stream,
    Group: settings.group,
    Subject: delivery.original.subject,
    Sequence: String(delivery.sequence),
  }
  const headers = originals(writableHeaders(headerEntries(delivery.original)))
  const lost = withoutRoom(headers, said)
  if (lost.size > 0) {
    const names = [...lost].map(([name]) => name).join(', ')
    said.Reason += ` [without its largest headers, which JetStream has no room for: ${names.slice(0, 200)}]`
  }
  const ours = Object.entries(said).map(([name, value]): [string, string] => [OURS + name, value])
  return [...headers.filter((header) => !lost.has(header)), ...ours]
}

/** For the names of those without room, in bytes. */
const NAMES = 1000

/** No stream takes more than so many bytes, and nobody can raise that: the largest go until the others fit. */
function withoutRoom(headers: readonly [string, string][], said: object): Set<[string, string]> {
  const lost = new Set<[string, string]>()
  const start = 'NATS/1.0\r\n\r\n'.length
  const ours = Object.entries(said).reduce((sum, [name, value]) => sum + bytesOf(OURS + name, value), start)
  let over = headers.reduce((sum, header) => sum + bytesOf(...header), ours) - HEADER_BYTES
  if (over <= 0) return lost
  over += NAMES
  for (const header of [...headers].sort((a, b) => bytesOf(...b) - bytesOf(...a))) {
    if (over <= 0) break
    lost.add(header)
    over -= bytesOf(...header)
  }
  return lost
}

function bytesOf(name: string, value: string): number {
  return Buffer.byteLength(name) + Buffer.byteLength(value) + ': \r\n'.length
}

/** Without what we said of an earlier life, and with the server's own words set aside. */
function originals(headers: readonly [string, string][]): [string, string][] {
  return headers
    .filter(([name]) => !name.startsWith(OURS))
    .map(([name, value]) => [name.startsWith(SERVERS) ? OURS + name : name, value])
}

export async function deadLettersOf(
  settings: GroupSettings,
  api: JetStreamApi,
  options: DeadLetterOptions = {},
): Promise<NatsDeadLetter[]> {
  checkOptions('dead letters', options, { count: true, after: true })
  const count = wholeNumber('dead letters: count', options.count ?? 100)
  const subject = besideSubject(settings, 'letter', '*')
  const letters: NatsDeadLetter[] = []
  for (let after = idOf(options.after ?? '0'); letters.length < count; ) {
    const stored = await api.message(settings.dead, { seq: after + 1, next_by_subj: subject })
    if (stored === undefined) break
    letters.push(letterOf(settings, stored))
    after = stored.seq
  }
  return letters
}

/**
 * Publishes it anew where it came from, for its group alone: sources of other groups pass it over. The dead letter is
 * removed when the stream has it. Whoever dies in between and does it again within the duplicate window sends it once.
 */
export async function rearmLetter(settings: GroupSettings, api: JetStreamApi, id: string): Promise<boolean> {
  const stored = await letterAt(settings, api, id)
  if (stored === undefined) return false
  const { subject, stream } = letterOf(settings, stored)
  const headers = headersOf(stored)
    .filter(([name]) => !name.startsWith(OURS))
    .concat([
      ['Nats-Msg-Id', `rearmed ${settings.dead} ${stored.seq} ${stored.time}`],
      ['Nats-Expected-Stream', stream],
      [ONLY, settings.group],
    ])
  const question = { subject, data: dataOf(stored), headers: headerBytes(headers) }
  const [error] = await api.store(stream, [question])
  if (error !== undefined) throw error
  await api.deleteMessage(settings.dead, stored.seq)
  return true
}

export async function discardLetter(settings: GroupSettings, api: JetStreamApi, id: string): Promise<boolean> {
  const stored = await letterAt(settings, api, id)
  return stored !== undefined && (await api.deleteMessage(settings.dead, stored.seq))
}

/** A number may be that of a note, or of another group's dead letter. */
async function letterAt(settings: GroupSettings, api: JetStreamApi, id: string): Promise<StoredMessage | undefined> {
  const stored = await api.message(settings.dead, { seq: idOf(id) })
  return stored?.subject.startsWith(besideSubject(settings, 'letter', '')) ? stored : undefined
}

function idOf(id: string): number {
  if (/^\d{1,15}$/.test(id)) return Number(id)
  throw new WaybillError(
    'INVALID_OPTION',
    `${JSON.stringify(id)} is no dead letter's id; list() of the dead letters returns them`,
  )
}

function letterOf(settings: GroupSettings, stored: StoredMessage): NatsDeadLetter {
  const all = headersOf(stored)
  const said = (name: string) => all.find(([known]) => known === OURS + name)?.[1] ?? ''
  const headers: Record<string, string> = Object.create(null)
  for (const [name, value] of all) {
    if (name.startsWith(KEPT)) headers[name.slice(OURS.length)] = value
    else if (!name.startsWith(OURS)) headers[name] = value
  }
  const [data, subject, sequence] = [dataOf(stored), said('Subject'), Number(said('Sequence'))]
  let message: RawMessage | undefined
  try {
    message = settings.decode({ headers, data, subject, sequence })
  } catch {
    // It stays here with its reason.
  }
  return {
    id: String(stored.seq),
    stream: said('Stream'),
    group: said('Group'),
    subject,
    sequence,
    reason: said('Reason'),
    attempts: Number(said('Attempts')),
    headers,
    data,
    message,
  }
}

function dataOf({ data = '' }: StoredMessage): Buffer {
  return Buffer.from(data, 'base64')
}

function headersOf({ hdrs = '' }: StoredMessage): [string, string][] {
  const lines = Buffer.from(hdrs, 'base64').toString().split('\r\n').slice(1)
  return lines
    .filter((line) => line.includes(':'))
    .map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 1).trim()])
}
