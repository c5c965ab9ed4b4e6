import type { SecureContextOptions } from 'node:tls'
import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  oneOf,
  type RawMessage,
  systemClock,
  WaybillError,
  warnOnce,
  wholeNumber,
} from '../../core/index.ts'
import { topicOf } from '../../flow/index.ts'
import { AddressGuard, type Lookup } from './addresses.ts'
import { MODES, type Mode } from './encoding.ts'
import { type Secret, secretsOf } from './signature.ts'

/** Where a message goes, by what it is and by the topic it was given. */
export type UrlOf = (message: RawMessage, topic: string) => string | URL

/** Where webhooks go, how they are signed, and how long an answer may take. */
export interface HttpSenderOptions {
  /** One destination, or one for each message. See HttpSender for what that changes. */
  url: string | URL | UrlOf
  /** `whsec_…`, or several while they are changed: all of them sign. */
  secrets?: string | readonly string[]
  /** Sends without a signature. One of this and `secrets` must be given. */
  unsigned?: boolean
  name?: string
  /** Default `binary`. */
  mode?: Mode
  /** How long one request may take, from connecting to its answer. Default 15 s. */
  timeout?: Duration
  /** How many requests at once, over as many connections, which are kept for the next ones. Default 10. */
  concurrency?: number
  /** The longest pause a Retry-After may ask for. Default 1 h. */
  longestRetryAfter?: Duration
  /** Hosts and networks that may be reached although they are not public: `["hooks.internal", "10.1.0.0/16"]`. */
  allow?: readonly string[]
  /** Sent with every request, such as `authorization`. */
  headers?: Readonly<Record<string, string>>
  /** Certificates, for authorities and clients of your own. */
  tls?: Pick<SecureContextOptions, 'ca' | 'cert' | 'key' | 'pfx' | 'passphrase' | 'minVersion'>
  /** How names become addresses. Default: as the system does it. */
  lookup?: Lookup
  clock?: Clock
}

const OPTIONS: OptionNames<HttpSenderOptions> = {
  url: true,
  secrets: true,
  unsigned: true,
  name: true,
  mode: true,
  timeout: true,
  concurrency: true,
  longestRetryAfter: true,
  allow: true,
  headers: true,
  tls: true,
  lookup: true,
  clock: true,
}

const TLS_OPTIONS: OptionNames<NonNullable<HttpSenderOptions['tls']>> = {
  ca: true,
  cert: true,
  key: true,
  pfx: true,
  passphrase: true,
  minVersion: true,
}

/** The options, checked, with their defaults. */
export interface HttpSenderSettings {
  readonly name: string
  /** The one destination, where there is one. */
  readonly fixed: URL | undefined
  readonly urlOf: (message: RawMessage) => URL
  readonly headers: Readonly<Record<string, string>>
  readonly mode: Mode
  readonly secrets: readonly Secret[]
  readonly guard: AddressGuard
  readonly timeout: number
  readonly concurrency: number
  readonly longestRetryAfter: number
  readonly tls: HttpSenderOptions['tls']
  readonly clock: Clock
}

export function senderSettings(options: HttpSenderOptions): HttpSenderSettings {
  checkOptions('http sender', options, OPTIONS)
  const { url, secrets, unsigned = false, clock = systemClock } = options ?? {}
  const fixed = typeof url === 'function' ? undefined : urlFrom('http sender: url', url)
  const name = options.name ?? (fixed === undefined ? 'http' : `http ${fixed.host}`)
  const where = `http sender ${name}`
  checkOptions(`${where}: tls`, options.tls, TLS_OPTIONS)
  if (unsigned === (secrets !== undefined)) {
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}: give either secrets, with which requests are signed, or unsigned: true; not both`,
    )
  }
  const guard = new AddressGuard(where, options.allow ?? [], options.lookup)
  if (fixed !== undefined) guard.checkHost(fixed.hostname)
  if (fixed?.protocol === 'http:' && !guard.named(fixed.hostname)) {
    warnOnce(where, 'the URL is not https: whoever is on the way can read the events')
  }
  return {
    name,
    fixed,
    urlOf:
      typeof url === 'function' ? (message) => urlFrom(`${where}: url`, url(message, topicOf(message))) : () => fixed!,
    headers: headersFrom(where, options.headers),
    mode: oneOf(`${where}: mode`, options.mode ?? 'binary', MODES),
    secrets: secrets === undefined ? [] : secretsOf(where, secrets),
    guard,
    timeout: milliseconds(options.timeout ?? '15s', `${where}: timeout`),
    concurrency: wholeNumber(`${where}: concurrency`, options.concurrency ?? 10, { max: 10_000 }),
    longestRetryAfter: milliseconds(options.longestRetryAfter ?? '1h', `${where}: longestRetryAfter`),
    tls: options.tls,
    clock,
  }
}

function urlFrom(where: string, given: unknown): URL {
  const url = given instanceof URL ? given : typeof given === 'string' ? parsed(given) : undefined
  if (url === undefined || !['http:', 'https:'].includes(url.protocol)) {
    // Not more than where it leads: a URL may hold a token.
    const shown =
      url === undefined ? (typeof given === 'string' ? 'a text that is no URL' : describe(given)) : url.protocol
    throw new WaybillError('INVALID_OPTION', `${where}: ${shown} is not allowed; give a URL that begins with https://`)
  }
  if (url.username !== '' || url.password !== '') {
    throw new WaybillError(
      'INVALID_OPTION',
      `${where}: credentials in the URL of ${url.host} would appear in logs; give headers: { authorization }`,
    )
  }
  return url
}

function parsed(text: string): URL | undefined {
  try {
    return new URL(text)
  } catch {
    return undefined
  }
}

/** All of `webhook-` but what says who sends, which receivers that ask for it give their consent to. */
const OWN_HEADERS =
  /^(ce-.*|webhook-(?!request-origin$).*|content-type|content-length|content-encoding|host|connection|transfer-encoding)$/

function headersFrom(where: string, given: HttpSenderOptions['headers'] = {}): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const [name, value] of Object.entries(given)) {
    const lower = name.toLowerCase()
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(lower) || OWN_HEADERS.test(lower)) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: headers: ${describe(name)} cannot be set: Waybill sets it, or it is no valid header name`,
      )
    }
    if (typeof value !== 'string' || /[^\t\x20-\x7e]/.test(value)) {
      throw new WaybillError(
        'INVALID_OPTION',
        `${where}: headers: the value of ${describe(name)} is not printable ASCII text`,
      )
    }
    headers[lower] = value
  }
  return headers
}
