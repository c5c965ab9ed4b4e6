import { isVerdict, WaybillError, withoutCode } from './errors.ts'
import { causesOf, firstOf } from './thrown.ts'

/** Longest error text that is stored with a message or logged. */
export const MAX_ERROR_LENGTH = 500

/** How much of a message is looked at. What is cut off is gone before anything searches it. */
const MAX_READ = 2000

/** Of an error that has causes, so that there is room for these. */
const MAX_FIRST = 300

/** The error and three causes are enough to see what happened. */
const MAX_CAUSES = 3

/**
 * The summary of an error that is safe to keep: name, code and message of it and of its causes, one line, bounded:
 * `TypeError: fetch failed < Error [ECONNREFUSED]: connect ECONNREFUSED 127.0.0.1:80`. It never holds data: some drivers
 * put values into `detail` or `where`, which are never read, and into quotes or behind a brace, where nothing is kept.
 * It fits into any store: no NUL, no half characters. Never throws, and takes no longer for a long text.
 */
export function errorSummary(error: unknown): string {
  const [first, ...causes] = errorSummaries(error)
  let text = causes.length === 0 ? first! : bounded(first!, MAX_FIRST)
  // Some of ours repeat the text of their cause.
  for (const cause of causes) if (!text.includes(cause.slice(cause.indexOf(': ') + 1))) text += ` < ${cause}`
  return bounded(text, MAX_ERROR_LENGTH)
}

/** The same in parts: the error, then its causes. */
export function errorSummaries(error: unknown): readonly string[] {
  const chain = causesOf(error)
  const first = firstOf(chain.at(-1)!)
  return [...chain, ...(first === undefined ? [] : [first])]
    .slice(0, 1 + MAX_CAUSES)
    .map((one) => bounded(summaryOfOne(one), MAX_ERROR_LENGTH))
}

function summaryOfOne(error: Error): string {
  const text = redacted(error)
  return text === '' ? labelOf(error) : `${labelOf(error)}: ${text}`
}

/** A name or a code is a word; anything else there may be data. */
const WORD = /^[\w$.:-]{1,64}$/

function labelOf(error: Error): string {
  const { code } = error as { code?: unknown }
  const name = WORD.test(error.name) ? error.name : 'Error'
  return typeof code === 'number' || (typeof code === 'string' && WORD.test(code)) ? `${name} [${code}]` : name
}

function redacted(error: Error): string {
  // The label in front has the code already.
  const message = error instanceof WaybillError ? withoutCode(error) : error.message
  const cut = message.length > MAX_READ
  const line = wellFormed(cut ? message.slice(0, MAX_READ) : message)
    .replace(CONTROLS, ' ')
    .replace(ADDRESS, (url, scheme: string, rest: string, at: number, text: string) => {
      const end = rest.lastIndexOf('@')
      if (end >= 0) return `${scheme}…${rest.slice(end)}`
      // What is cut off may be the rest of its password.
      return cut && at + url.length === text.length ? `${scheme}…` : url
    })
    .replace(NAMED_SECRET, '$1…')
    .trim()
  // Our own errors quote names and attributes, never data; but the text of a Reject is the user's.
  if (!(error instanceof WaybillError)) return withoutQuotes(withoutBraces(line), cut)
  return isVerdict(error) ? withoutJson(line, ANY_LONG) : withoutJson(line, QUOTED)
}

/** Everything up to its last @ is taken for user and password: people do not always encode the /, ? and # in a password. */
const ADDRESS = /\b([a-z][a-z0-9+.-]{0,30}:\/\/)(\S+)/gi

/** What follows a name such as `password=`, `sslpassword=`, `AWS_SECRET_ACCESS_KEY: `; in quotes, or up to the next space. */
const NAMED_SECRET =
  /((?:password|passwd|passphrase|pwd|secret|token|(?:api|access|private)[_-]?key|authorization|credential|signature(?==)|\bpass(?==))[\w-]{0,20}["']?\s{0,3}[=:]\s{0,3})(?:(?:bearer|basic|digest) )?(?:"[^"]*"?|'[^']*'?|[^\s,;&)]+)/gi

const CONTROLS =
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what no line and no store should hold
  /[\s\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufff9-\ufffb\u{e0000}-\u{e007f}]+/gu

/** Nothing behind a brace or a bracket. */
function withoutBraces(line: string): string {
  const at = line.search(/[[{]/)
  return at < 0 ? line : `${line.slice(0, at)}…`
}

/** Quotes in pairs, so that the advice behind a quoted name is kept; and a long text behind any quote, closing ones too. */
const QUOTED = /"((?:[^"\\]|\\.|\\$)*)("|$)/g
const ANY_LONG = /"([^"]{65,})("|$)/g

function withoutJson(line: string, quoted: RegExp): string {
  const at = line.search(/[[{] ?["'[{]/)
  const kept = at < 0 ? line : `${line.slice(0, at)}…`
  return kept.replace(quoted, (all, inner: string) => (inner.length > 64 ? '"…"' : all))
}

/** What PostgreSQL quotes after these is the name of something in the schema. */
const NAMED =
  /\b(?:column|constraint|database|encoding|function|index|operator|policy|relation|role|schema|sequence|statement|table|trigger|type|view) $/

/** Such a name; data mostly looks otherwise. */
const IDENTIFIER = /^[A-Za-z_][\w$]{0,62}$/

const QUOTE = /["'`“”„‘’‚«»‹›]/g

/**
 * Everything from the first quote on, up to the last: data may itself hold quotes. One that is not closed goes to the end.
 * Names of the schema stay.
 */
function withoutQuotes(line: string, cut: boolean): string {
  const quotes = [...line.matchAll(QUOTE)].map(({ index }) => index).filter((at) => !isApostrophe(line, at))
  let first = 0
  while (first + 1 < quotes.length && isNamed(line, quotes[first]!, quotes[first + 1]!)) first += 2
  const from = quotes[first]
  if (from === undefined) return line
  const last = quotes.at(-1)!
  const closed = last > from && !cut
  return `${line.slice(0, from)}"…"${closed ? line.slice(last + 1) : ''}`
}

function isNamed(line: string, open: number, close: number): boolean {
  return (
    line[open] === '"' &&
    line[close] === '"' &&
    IDENTIFIER.test(line.slice(open + 1, close)) &&
    NAMED.test(line.slice(Math.max(0, open - 12), open))
  )
}

/** As in "can't". */
function isApostrophe(line: string, at: number): boolean {
  return /^[A-Za-z]['’](?:s|t|re|ve|ll|d|m)\b/.test(line.slice(Math.max(0, at - 1), at + 4))
}

function bounded(text: string, most: number): string {
  return text.length > most ? `${wellFormed(text.slice(0, most - 1))}…` : text
}

/** Half a character, which a cut may leave, is refused by stores. */
function wellFormed(text: string): string {
  return text.replace(/\p{Cs}/gu, '\ufffd')
}
