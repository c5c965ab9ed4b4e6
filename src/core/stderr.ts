import { fieldsOf, lineOf } from './log-line.ts'
import { TELEMETRY_PREFIX, type TelemetryEvents, type TelemetryName, telemetry } from './telemetry.ts'

/** What a person should know although nobody has given a logger: errors, warnings, and for what a worker waits. */
export const REPORTED: { readonly [Name in TelemetryName]?: true | ((event: TelemetryEvents[Name]) => boolean) } = {
  'flow.open_failed': true,
  'flow.lost': true,
  'flow.take_failed': true,
  'flow.paused': true,
  'flow.settled': ({ stale }) => stale > 0,
  'flow.settle_failed': true,
  'settlement.refused': true,
  'message.retrying': true,
  'message.dead': true,
  'message.suspected': true,
  'ack.failed': true,
  'router.unknown_type': true,
  'router.newer_version': true,
  'bus.subscriber_failed': true,
  'inbox.fenced': true,
  'worker.waiting': true,
  'worker.failed': true,
  'worker.restarting': true,
  'task.failed': true,
  'relay.waiting': true,
  'leases.expired': true,
  'outbox.repaired': true,
  // A refusal is an answer.
  'saga.step': ({ error, result }) => error !== undefined && result !== 'refused',
  'saga.ended': ({ status }) => status === 'failed',
  'saga.held': true,
  'saga.taken_over': true,
  'saga.fenced': true,
  'saga.step_paused': true,
  'saga.overdue': true,
  'projection.parked': true,
  'projection.fenced': true,
  'projection.held': true,
  warning: true,
}

/** A storm of errors must not fill a disk: so many lines in so many milliseconds, and then how many were left out. */
const LINES = 20
const WITHIN = 10_000

let stops: (() => void)[] | undefined
let elsewhere = false

/** Called where a worker starts, and a store, a broker or a bus is made: until somebody gives a logger, errors and warnings go to stderr. */
export function reportOnStderr(): void {
  if (elsewhere || stops !== undefined) return
  const limited = limit((line) => process.stderr.write(`${line}\n`))
  stops = (Object.entries(REPORTED) as [TelemetryName, true | ((event: object) => boolean)][]).map(([name, reports]) =>
    telemetry[name].subscribe((event: object) => {
      if (reports === true || reports(event)) limited(lineOf(TELEMETRY_PREFIX + name, fieldsOf(event)))
    }),
  )
}

/** Somebody listens: stderr is not needed any more. */
export function loggedElsewhere(): void {
  elsewhere = true
  for (const stop of stops ?? []) stop()
  stops = undefined
}

export function limit(write: (line: string) => void, now: () => number = () => performance.now()): typeof write {
  let [since, lines, left] = [Number.NEGATIVE_INFINITY, 0, 0]
  return (line) => {
    if (now() - since >= WITHIN) {
      if (left > 0) write(`${TELEMETRY_PREFIX}left_out lines=${left}`)
      ;[since, lines, left] = [now(), 0, 0]
    }
    if (++lines <= LINES) write(line)
    else left++
  }
}
