import { createHash } from 'node:crypto'
import {
  checkOptions,
  describe,
  fieldsOf,
  type LogFields,
  lineOf,
  loggedElsewhere,
  oneOf,
  plainText,
  stackOf,
  TELEMETRY_NAMES,
  TELEMETRY_PREFIX,
  type TelemetryEvents,
  type TelemetryName,
  telemetry,
  WaybillError,
} from '../core/index.ts'

/** From the most to the least talkative. */
export const LOG_LEVELS = ['debug', 'info', 'warn', 'error'] as const
/** How important a line is. */
export type LogLevel = (typeof LOG_LEVELS)[number]

/** Fields first, then the text: pino, bunyan and the loggers of Fastify and NestJS-pino. */
export type FieldsLogger = { readonly [Level in LogLevel]: (fields: LogFields, text: string) => void }

/** `console`, or what looks like it: one line of text. */
export type TextLogger = { readonly [Level in LogLevel | 'log']: (text: string) => void }

/** For any other logger: three lines of your own. */
export type LogFunction = (level: LogLevel, text: string, fields: LogFields) => void

/** What is logged, and how tenants are written. */
export interface LogOptions {
  /** The least important level that is written. Default `info`. */
  level?: LogLevel
  /** Only these flows, routers and workers. Events that belong to none of them are always written. */
  flows?: readonly string[]
  /**
   * How tenants are written: as they are (`show`, default), as a hash that is the same in every line (`hash`), not at all
   * (`hide`), or as your function says. A hash of a short name can be guessed: give a function with a key of your own.
   */
  tenant?: 'show' | 'hash' | 'hide' | ((tenant: string) => string)
}

type EventLevel<Event> =
  | LogLevel
  | { readonly levels: readonly LogLevel[]; readonly of: (event: Event) => LogLevel; readonly why: string }

/** How important each event is. What depends on the event names its levels, the least important first. */
export const EVENT_LEVELS: { readonly [Name in TelemetryName]: EventLevel<TelemetryEvents[Name]> } = {
  'flow.opened': 'info',
  'flow.open_failed': 'warn',
  'flow.lost': 'warn',
  'flow.take_failed': 'warn',
  'flow.taken': 'debug',
  'flow.paused': 'warn',
  'flow.resumed': 'info',
  'flow.settled': {
    levels: ['debug', 'warn'],
    of: ({ stale }) => (stale > 0 ? 'warn' : 'debug'),
    why: 'warn when some were stale',
  },
  'flow.settle_failed': {
    levels: ['warn', 'error'],
    of: ({ lost }) => (lost ? 'error' : 'warn'),
    why: 'error when it is not tried again',
  },
  'settlement.refused': 'error',
  'messages.handled': 'debug',
  'message.handled': 'debug',
  'message.retrying': 'warn',
  'message.dead': 'error',
  'message.suspected': 'warn',
  'ack.failed': 'error',
  'router.unknown_type': 'warn',
  'router.newer_version': 'warn',
  'bus.subscriber_failed': 'error',
  'inbox.fenced': 'warn',
  'inbox.duplicate': 'debug',
  'worker.started': 'info',
  'worker.stopped': 'info',
  'worker.waiting': 'warn',
  'worker.failed': 'error',
  'worker.restarting': 'warn',
  'task.failed': 'warn',
  'task.ran': 'debug',
  'cleaner.cleaned': 'info',
  'relay.reader': 'info',
  'relay.waiting': {
    levels: ['info', 'warn'],
    of: ({ shard, overdue }) => (overdue || shard === undefined ? 'warn' : 'info'),
    why: 'warn when the other reads in another way, or has missed a renewal',
  },
  'leases.expired': 'warn',
  'relay.leads': 'info',
  'outbox.enqueued': 'debug',
  'outbox.repaired': 'warn',
  'due.decided': 'debug',
  'saga.started': 'debug',
  'saga.step': {
    levels: ['debug', 'warn'],
    of: ({ error }) => (error === undefined ? 'debug' : 'warn'),
    why: 'warn when it failed',
  },
  'saga.reply': 'debug',
  'saga.ended': {
    levels: ['debug', 'info', 'error'],
    of: ({ status }) => (status === 'completed' ? 'debug' : status === 'failed' ? 'error' : 'info'),
    why: 'info when compensated, error when failed',
  },
  'saga.held': 'error',
  'saga.taken_over': 'warn',
  'saga.fenced': 'warn',
  'saga.step_paused': 'warn',
  'saga.step_resumed': 'info',
  'saga.overdue': 'warn',
  'projection.owned': 'info',
  'projection.applied': 'debug',
  'projection.parked': 'error',
  'projection.unparked': 'info',
  'projection.fenced': 'warn',
  'projection.held': 'warn',
  warning: 'warn',
}

/**
 * Writes every telemetry event to your logger, under the name of its channel (`waybill:flow.paused`), and returns the
 * way to stop. A logger that throws harms nobody.
 */
export function logTo(logger: FieldsLogger | TextLogger | LogFunction, options: LogOptions = {}): () => void {
  checkOptions('logTo', options, { level: true, flows: true, tenant: true })
  const mask = maskOf(options.tenant ?? 'show')
  const write = writerOf(logger)
  const least = LOG_LEVELS.indexOf(oneOf('logTo: level', options.level ?? 'info', LOG_LEVELS))
  const flows = options.flows === undefined ? undefined : new Set(listOf(options.flows))
  const stops = TELEMETRY_NAMES.flatMap((name) => {
    const level = EVENT_LEVELS[name] as EventLevel<unknown>
    const highest = typeof level === 'string' ? level : level.levels.at(-1)!
    // What can never be written is not even listened to: `message.handled` is published only for listeners.
    if (LOG_LEVELS.indexOf(highest) < least) return []
    return telemetry[name].subscribe((event: object) => {
      const actual = typeof level === 'string' ? level : level.of(event)
      if (LOG_LEVELS.indexOf(actual) < least || (flows !== undefined && !belongs(event, flows))) return undefined
      // A promise is watched like the rest.
      return write(actual, TELEMETRY_PREFIX + name, {
        ...masked(fieldsOf(event), mask),
        ...(least === 0 && stack(event)),
      })
    })
  })
  loggedElsewhere()
  return () => {
    for (const stop of stops) stop()
  }
}

/** The letters of a text would be flows, and nobody would read a line. */
function listOf(flows: readonly string[]): readonly string[] {
  if (Array.isArray(flows)) return flows
  throw new WaybillError('INVALID_OPTION', `logTo: flows: ${describe(flows)} is not allowed; give a list of names`)
}

/** Whoever asks for everything is looking for a fault. */
function stack(event: object): { stack?: string } {
  const text = stackOf(event)
  return text === undefined ? {} : { stack: text }
}

type Mask = ((tenant: string) => string | undefined) | undefined

function maskOf(given: NonNullable<LogOptions['tenant']>): Mask {
  if (typeof given === 'function') return given
  const how = oneOf('logTo: tenant', given, ['show', 'hash', 'hide'])
  if (how === 'show') return undefined
  return how === 'hide' ? () => undefined : hashed
}

function hashed(tenant: string): string {
  return createHash('sha256').update(tenant).digest('hex').slice(0, 16)
}

function masked(fields: LogFields, mask: Mask): LogFields {
  const { tenant, ...rest } = fields
  if (mask === undefined || typeof tenant !== 'string') return fields
  const shown = attemptMask(mask, tenant)
  return shown === undefined ? rest : { ...rest, tenant: shown }
}

/** One that throws hides the tenant, and not the line. */
function attemptMask(mask: NonNullable<Mask>, tenant: string): string | undefined {
  try {
    const shown = mask(tenant)
    return shown === undefined ? undefined : plainText(String(shown))
  } catch {
    return undefined
  }
}

function belongs(event: { flow?: string; router?: string; worker?: string }, flows: ReadonlySet<string>): boolean {
  const owner = event.flow ?? event.router ?? event.worker
  return owner === undefined || flows.has(owner)
}

function writerOf(logger: FieldsLogger | TextLogger | LogFunction): LogFunction {
  if (typeof logger === 'function') return logger
  for (const level of LOG_LEVELS) {
    if (typeof logger?.[level] === 'function') continue
    const text = `logTo: the logger has no ${level}(); give console, a logger such as pino, or (level, text, fields) => …`
    throw new WaybillError('INVALID_OPTION', text)
  }
  // pino's console-like `log` does not exist; others that have both (winston) take a function.
  if ('log' in logger) return (level, text, fields) => logger[level](lineOf(text, fields))
  return (level, text, fields) => logger[level](fields, text)
}
