import { Reject, Unavailable, WaybillError } from './errors.ts'
import { RetryLater } from './retry-later.ts'
import { causesOf } from './thrown.ts'

/**
 * What an error says about trying again:
 * - `transient`: the same message may succeed later; an attempt is spent;
 * - `permanent`: it never will; dead-letter now;
 * - `down`: not the message but what it needs is away; nobody is charged.
 */
export type ErrorKind = 'transient' | 'permanent' | 'down'

export type Classify = (error: unknown) => ErrorKind

const NETWORK = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'ECONNABORTED',
  'EPIPE',
  'ETIMEDOUT',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'ENETDOWN',
  'EAI_AGAIN',
  'ENOTFOUND',
  'UND_ERR_SOCKET',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
])

/**
 * Connection exceptions, rolled-back transactions, insufficient resources, operator intervention; a lock not had, and
 * a server that became read-only because another took over.
 */
const TRANSIENT_SQLSTATE = /^((08|40|53|57)[0-9A-Z]{3}|25006|55P03)$/

const SQLSTATE = /^[0-9A-Z]{5}$/

const REDIS_TRANSIENT = /^(LOADING|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|READONLY|BUSY|NOREPLICAS|MOVED|ASK)\b/

/** gRPC DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE. */
const GRPC_TRANSIENT = new Set([4, 8, 14])

/** Our own codes that a second try cannot mend. */
const PERMANENT_CODES = new Set([
  'REJECTED',
  'INVALID_PAYLOAD',
  'MALFORMED_MESSAGE',
  'NO_VERSION',
  'WRONG_TYPE',
  'NOT_SERIALISABLE',
  // What a store of Redis could not write, or only in part.
  'COMMAND_REFUSED',
  'COMMAND_FAILED',
  'PARTLY_APPLIED',
  'WRONG_KEY_TYPE',
  'CROSSSLOT',
])

/** A server that is the wrong one, or not set as was required: every message would fail, and none is to blame. */
const DOWN_CODES = new Set(['UNSUPPORTED_SERVER', 'NOT_DURABLE'])

/**
 * The default classifier. Unknown errors are transient: rather one attempt too many than a message lost to a
 * guess; the attempt limit ends what never succeeds.
 */
export const classify: Classify = (error) => {
  for (const one of causesOf(error)) {
    const kind = classifyOne(one)
    if (kind !== undefined) return kind
  }
  return 'transient'
}

/**
 * A user's classifier under guard. It is given what was thrown as it was; one that throws, or that says nothing we know,
 * leaves the verdict to ours.
 */
export function classifier(given: Classify | undefined): Classify {
  if (given === undefined) return classify
  return (error) => {
    try {
      const kind = given(error)
      return KINDS.has(kind) ? kind : classify(error)
    } catch {
      return classify(error)
    }
  }
}

const KINDS: ReadonlySet<unknown> = new Set<ErrorKind>(['transient', 'permanent', 'down'])

function classifyOne(error: Error): ErrorKind | undefined {
  if (error instanceof Unavailable) return 'down'
  if (error instanceof Reject) return 'permanent'
  if (error instanceof RetryLater) return 'transient'
  const code = (error as { code?: unknown }).code
  if (error instanceof WaybillError && DOWN_CODES.has(error.code)) return 'down'
  if (error instanceof WaybillError && PERMANENT_CODES.has(error.code)) return 'permanent'
  if (error.name === 'AbortError' || error.name === 'TimeoutError') return 'transient'
  if (typeof code === 'number') return GRPC_TRANSIENT.has(code) ? 'transient' : undefined
  if (typeof code === 'string') {
    if (NETWORK.has(code)) return 'transient'
    if (SQLSTATE.test(code) && isDatabaseError(error)) return TRANSIENT_SQLSTATE.test(code) ? 'transient' : 'permanent'
  }
  if (REDIS_TRANSIENT.test(error.message)) return 'transient'
  return undefined
}

/** pg, postgres.js and PGlite errors carry a severity; five capitals alone (EPIPE, EBUSY) are not an SQLSTATE. */
function isDatabaseError(error: Error): boolean {
  return 'severity' in error || 'severity_local' in error
}
