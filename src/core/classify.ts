import { Reject, RetryLater, Unavailable, WaybillError } from './errors.ts'
import { causesOf } from './thrown.ts'

/**
 * What an error says about trying again:
 * - `transient`: this message or this moment; it may succeed later, and an attempt is spent;
 * - `permanent`: the message's own data, which no outage and no deploy explains; dead-letter now;
 * - `down`: what an outage or a deploy in the wrong order explains. The window decides: while all fail, nobody is charged
 *   and the flow pauses; when others arrive, the message is charged.
 */
export type ErrorKind = 'transient' | 'permanent' | 'down'

/** Judges what was thrown: `permanent`, `transient` or `down`. See the guide on errors. */
export type Classify = (error: unknown) => ErrorKind

/** Codes of Node and of clients that say that the other side, or the way to it, is away. */
const AWAY = new Set([
  // sockets
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'EPROTO',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'EHOSTDOWN',
  'ENETUNREACH',
  'ENETDOWN',
  'EADDRNOTAVAIL',
  'ERR_SOCKET_CLOSED',
  'ERR_HTTP2_SESSION_ERROR',
  'ERR_HTTP2_GOAWAY_SESSION',
  // names and certificates: the server's, or the settings'
  'EAI_AGAIN',
  'EAI_FAIL',
  'ENOTFOUND',
  'CERT_HAS_EXPIRED',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  'ERR_TLS_CERT_ALTNAME_INVALID',
  // this machine
  'EMFILE',
  'ENFILE',
  'ENOSPC',
  // fetch
  'UND_ERR_SOCKET',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_CLOSED',
  'UND_ERR_DESTROYED',
  // postgres.js
  'CONNECTION_CLOSED',
  'CONNECTION_DESTROYED',
  'CONNECTION_ENDED',
  'CONNECT_TIMEOUT',
  // Prisma: no server, no connection, no table, no column
  'P1001',
  'P1002',
  'P1003',
  'P1008',
  'P1010',
  'P1017',
  'P2021',
  'P2022',
  'P2024',
])

/** The same of clients that give no code: pg, node-redis, ioredis. */
const AWAY_TEXT =
  /^(Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed and is not queryable|Socket closed unexpectedly|The client is closed|Connection is closed|Reached the max retries per request limit)/

/** No answer in time. One message may be slow, so that in a handler it is transient; for a publisher see below. */
const LATE_NAMES = new Set(['AbortError', 'TimeoutError'])
const LATE_CODES = new Set(['TIMEOUT', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'])

/**
 * SQLSTATE, by code or by class (its first two characters). What is not listed is transient. The guide on errors shows the
 * same table with its reasons.
 */
const SQLSTATES: Readonly<Record<string, ErrorKind>> = {
  '08': 'down', // connection exception
  '0A': 'down', // feature not supported: `cached plan must not change result type` after a migration
  '0L': 'down', // invalid grantor
  '0P': 'down', // invalid role
  '22': 'permanent', // a value that cannot be: too long, out of range, no number, no date
  '23505': 'permanent', // unique: the other row stays
  '23514': 'permanent', // check
  '23P01': 'permanent', // exclusion
  '25006': 'down', // read only: another server has taken over
  '25P03': 'down', // the server ended the session: idle_in_transaction_session_timeout of the role
  '25P04': 'down', // transaction_timeout of the role
  '26': 'down', // prepared statement does not exist: a pooler
  '28': 'down', // invalid authorisation
  '3D': 'down', // no such database
  '3F': 'down', // no such schema
  '42': 'down', // syntax, missing tables, columns and functions, missing grants
  '53': 'down', // disk full, out of memory, too many connections
  '53400': 'transient', // a limit of one query, such as temp_file_limit
  '55P02': 'down', // a setting that cannot be changed now
  '57': 'down', // shutdown, crash, starting up
  '57014': 'transient', // cancelled: statement_timeout
  '58': 'down', // the server's disk or files
  F0: 'down', // the server's configuration
  HV00N: 'down', // a foreign server that cannot be reached
  XX: 'down', // internal errors, damaged tables
}

/** Where PostgreSQL uses one code for two things: the function that said it. */
const ROUTINES: Readonly<Record<string, ErrorKind>> = {
  ExecFindPartition: 'down', // 23514: no partition for the row; somebody forgot to make one
  enum_in: 'transient', // 22P02: a value the enum does not have, or not yet
  GetNewTransactionId: 'down', // 54000: no transaction ids left, nothing can be written
}

const SQLSTATE = /^[0-9A-Z]{5}$/

/** Redis says that it is the wrong server, or in no state to take anything. */
const REDIS_DOWN =
  /^(LOADING|CLUSTERDOWN|TRYAGAIN|MOVED|ASK|BUSY|MASTERDOWN|READONLY|NOREPLICAS|MISCONF|OOM|NOAUTH|WRONGPASS|NOPERM)\b/

/** gRPC UNAVAILABLE. Others (DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED) are transient, as all that is not known. */
const GRPC_UNAVAILABLE = 14

/** Our own codes that a second try cannot mend. */
const PERMANENT_CODES = new Set([
  'REJECTED',
  'INVALID_PAYLOAD',
  'MALFORMED_MESSAGE',
  'NO_VERSION',
  'WRONG_TYPE',
  'NOT_SERIALISABLE',
  'NOT_SETTLED',
  // What a store of Redis could not write, or only in part.
  'COMMAND_REFUSED',
  'COMMAND_FAILED',
  'PARTLY_APPLIED',
  'WRONG_KEY_TYPE',
  'CROSSSLOT',
])

/** A server that is the wrong one, or not set up as is required: every message would fail, and none is to blame. */
const DOWN_CODES = new Set(['UNSUPPORTED_SERVER', 'NOT_DURABLE', 'NOT_MIGRATED', 'NO_PERMISSION', 'READ_ONLY'])

/**
 * The default classifier. Unknown errors are transient: rather one attempt too many than a message lost to a
 * guess; the attempt limit ends what never succeeds.
 */
export const classify: Classify = (error) => verdict(error, 'transient')

/**
 * The same for publishers. A time-out is `down` there: a destination that hangs is away for all, and a single message
 * that always times out is found by the window.
 */
export const classifyPublish: Classify = (error) => verdict(error, 'down')

function verdict(error: unknown, late: ErrorKind): ErrorKind {
  for (const one of causesOf(error)) {
    const kind = classifyOne(one, late)
    if (kind !== undefined) return kind
  }
  return 'transient'
}

/**
 * A user's classifier under guard. It is given what was thrown as it was; one that throws, or that says nothing we know,
 * leaves the verdict to ours.
 */
export function classifier(given: Classify | undefined, ours: Classify = classify): Classify {
  if (given === undefined) return ours
  return (error) => {
    try {
      const kind = given(error)
      return KINDS.has(kind) ? kind : ours(error)
    } catch {
      return ours(error)
    }
  }
}

const KINDS: ReadonlySet<unknown> = new Set<ErrorKind>(['transient', 'permanent', 'down'])

function classifyOne(error: Error, late: ErrorKind): ErrorKind | undefined {
  if (error instanceof Unavailable) return 'down'
  if (error instanceof Reject) return 'permanent'
  if (error instanceof RetryLater) return 'transient'
  const { code, message } = error as { code?: unknown; message: string }
  if (error instanceof WaybillError) {
    if (DOWN_CODES.has(error.code)) return 'down'
    if (PERMANENT_CODES.has(error.code)) return 'permanent'
  }
  if (LATE_NAMES.has(error.name)) return late
  if (code === GRPC_UNAVAILABLE && 'details' in error) return 'down'
  if (typeof code === 'string') {
    if (AWAY.has(code)) return 'down'
    if (LATE_CODES.has(code)) return late
    if (SQLSTATE.test(code) && isDatabaseError(error)) return ofSqlState(code, error)
  }
  return AWAY_TEXT.test(message) || REDIS_DOWN.test(message) ? 'down' : undefined
}

function ofSqlState(code: string, { routine }: Error & { routine?: unknown }): ErrorKind {
  const said = typeof routine === 'string' && Object.hasOwn(ROUTINES, routine) ? ROUTINES[routine] : undefined
  return said ?? SQLSTATES[code] ?? SQLSTATES[code.slice(0, 2)] ?? 'transient'
}

/** pg, postgres.js and PGlite errors carry a severity; five capitals alone (EPIPE, EBUSY) are not an SQLSTATE. */
function isDatabaseError(error: Error): boolean {
  return 'severity' in error || 'severity_local' in error
}

/** Whether an error says that its message is not to blame: it is tried again, and no attempt is spent. */
export function blameless(error: unknown): boolean {
  return error instanceof RetryLater ? !error.charged : classify(error) === 'down'
}
