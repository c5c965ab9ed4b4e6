import { WaybillError } from '../../core/index.ts'
import { type KafkaRefusal, leaderless, refusal, unavailable } from './kafka.ts'

const REFUSALS: Readonly<Record<string, KafkaRefusal>> = {
  MESSAGE_TOO_LARGE: 'MESSAGE_TOO_LARGE',
  RECORD_LIST_TOO_LARGE: 'MESSAGE_TOO_LARGE',
  INVALID_RECORD: 'INVALID_RECORD',
  INVALID_TIMESTAMP: 'INVALID_RECORD',
  UNKNOWN_TOPIC_OR_PARTITION: 'UNKNOWN_TOPIC',
  INVALID_TOPIC_EXCEPTION: 'UNKNOWN_TOPIC',
  TOPIC_AUTHORIZATION_FAILED: 'NOT_ALLOWED',
  GROUP_AUTHORIZATION_FAILED: 'NOT_ALLOWED',
  CLUSTER_AUTHORIZATION_FAILED: 'NOT_ALLOWED',
  ILLEGAL_GENERATION: 'STALE_GENERATION',
  UNKNOWN_MEMBER_ID: 'STALE_GENERATION',
  REBALANCE_IN_PROGRESS: 'STALE_GENERATION',
  FENCED_INSTANCE_ID: 'STALE_GENERATION',
}

/** The server's own word for an error, however often kafkajs has wrapped it. */
export function typeOf(error: unknown): string | undefined {
  for (let at = error, depth = 0; at instanceof Error && depth < 8; at = at.cause as unknown, depth++) {
    const { type } = at as { type?: unknown }
    if (typeof type === 'string') return type
    const { errors } = at as { errors?: unknown }
    if (Array.isArray(errors)) return typeOf(errors[0])
  }
  return undefined
}

/** An error of kafkajs as one of ours. What is no clear refusal is the server's trouble. */
export function translated(what: string, error: unknown): WaybillError {
  if (error instanceof WaybillError) return error
  const type = typeOf(error)
  if (type === 'LEADER_NOT_AVAILABLE') return leaderless(what, error as Error)
  const code = type === undefined ? undefined : REFUSALS[type]
  if (code === undefined) return unavailable(what, error)
  const text = error instanceof Error ? error.message : String(error)
  return refusal(code, `${what}: ${text} [${type}]`, error)
}
