import { describe, WaybillError } from '../core/index.ts'
import type { LogToken, Position } from './port.ts'

/** The header, and the cookie, that carry a token. */
export const TOKEN_HEADER = 'waybill-token'
/**
 * A cookie holds 4 KB. Of more ranges or positions than these the highest are kept, because they decide when the view is
 * there. Whether one of the others is parked is then not known.
 */
const MAX_RANGES = 64
const MAX_POSITIONS = 10_000
const MAX_LENGTH = 4000

/** A token as text, for a header or a cookie. */
export function tokenText({ log, incarnation = '', positions }: LogToken): string {
  const ranges: [Position, Position][] = []
  for (const position of positions.slice(-MAX_POSITIONS)) {
    const last = ranges.at(-1)
    // An event that was enqueued twice has one number.
    if (last !== undefined && position <= last[1] + 1n) last[1] = position
    else ranges.push([position, position])
  }
  const kept = ranges.slice(-MAX_RANGES).map(([from, to]) => (from === to ? `${from}` : `${from}-${to}`))
  return `1.${encoded(log)}.${encoded(incarnation)}.${kept.join('_')}`
}

const encoded = (text: string) => Buffer.from(text).toString('base64url')
const decoded = (text: string) => Buffer.from(text, 'base64url').toString()

/** A token from its text. INVALID_TOKEN for anything else: it comes from outside. */
export function tokenOf(text: string): LogToken {
  const match = typeof text === 'string' && text.length <= MAX_LENGTH ? TOKEN.exec(text) : null
  if (match === null) throw invalid(text)
  const positions: Position[] = []
  for (const range of match[3]!.split('_')) {
    const [from, to = from] = range.split('-').map(BigInt) as [bigint, bigint?]
    // The last one decides when a view has them all.
    if (to < from || from <= (positions.at(-1) ?? -1n) || to > MAX_POSITION) throw invalid(text)
    // A forged range must not fill the memory.
    if (to - from >= MAX_POSITIONS || positions.length + Number(to - from) >= MAX_POSITIONS) throw invalid(text)
    for (let position = from; position <= to; position++) positions.push(position)
  }
  const incarnation = match[2] === '' ? undefined : decoded(match[2]!)
  return { log: decoded(match[1]!), incarnation, positions }
}

const TOKEN = /^1\.([\w-]{1,200})\.([\w-]{0,200})\.(\d{1,19}(?:-\d{1,19})?(?:_\d{1,19}(?:-\d{1,19})?)*)$/
const MAX_POSITION = 2n ** 63n - 1n

function invalid(text: unknown): WaybillError {
  return new WaybillError('INVALID_TOKEN', `${describe(text)} is not a token of a log; give what tokenText() returned`)
}

/** `Set-Cookie` that brings the token back with the next requests of this client, for so many seconds. Default 30. */
export function tokenCookie(token: LogToken, maxAge = 30): string {
  return `${TOKEN_HEADER}=${tokenText(token)}; Path=/; Max-Age=${maxAge}; HttpOnly; SameSite=Lax`
}

/** What a request carries: the header, or else the cookie. `undefined`: neither, or what is no token. */
export function tokenFrom(
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>,
): LogToken | undefined {
  const named = (name: string) => {
    const value = headers instanceof Headers ? headers.get(name) : (headers as Record<string, unknown>)[name]
    return typeof value === 'string' ? value : undefined
  }
  const cookies = (named('cookie') ?? '').split(';').map((cookie) => cookie.trim().split('='))
  const text = named(TOKEN_HEADER) ?? cookies.find(([name]) => name === TOKEN_HEADER)?.[1]
  try {
    return text === undefined ? undefined : tokenOf(text)
  } catch {
    return undefined
  }
}
