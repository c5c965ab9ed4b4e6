import { checkOptions, describe, WaybillError } from '../core/index.ts'
import { PHASES, type Phase, Worker } from './worker.ts'

/** Something that takes part in the order of a stop without being a worker: an HTTP server, a pool, a connection. */
export interface Stoppable {
  readonly name?: string
  readonly phase: Phase
  stop(): unknown
}

export interface RunOptions {
  /** Ends the run; `shutdownSignal()` is wired to SIGTERM and SIGINT. */
  signal: AbortSignal
}

/**
 * Starts every worker, waits for `signal`, and stops the whole process in order: requests, consumers, relays, broker
 * connections, stores. One call. When a worker cannot start or go on, the others are stopped in the same order and
 * its error is thrown; errors while stopping are gathered, and never keep the rest from being stopped.
 */
export async function run(members: readonly (Worker | Stoppable)[], options: RunOptions): Promise<void> {
  if (!Array.isArray(members)) {
    const text = `run: ${describe(members)} is not a list of members; give an array: run([relay], { signal })`
    throw new WaybillError('INVALID_OPTION', text)
  }
  checkOptions('run', options, ['signal'])
  if (!(options?.signal instanceof AbortSignal)) {
    throw new WaybillError(
      'INVALID_OPTION',
      'run: a signal is needed to know when to stop; give { signal: shutdownSignal() }',
    )
  }
  for (const member of members) {
    if (!PHASES.includes(member?.phase) || typeof member.stop !== 'function') {
      throw new WaybillError(
        'INVALID_OPTION',
        `run: a member must be a worker, or have stop() and a phase (${PHASES.join(', ')})`,
      )
    }
  }
  const workers = members.filter((member) => member instanceof Worker)
  let failure: unknown
  let failed = false
  try {
    // What others need is started first.
    for (const phase of [...PHASES].reverse()) {
      if (!options.signal.aborted) await startAll(workers.filter((worker) => worker.phase === phase && !worker.started))
    }
    const stopped = new Promise<void>((resolve) => {
      if (options.signal.aborted) resolve()
      else options.signal.addEventListener('abort', () => resolve(), { once: true })
    })
    await Promise.race([stopped, ...workers.map((worker) => worker.finished.then(() => stopped))])
  } catch (error) {
    failed = true
    failure = error
  }
  const errors = await stopAll(members)
  if (failed) throw failure
  if (errors.length > 0)
    throw new AggregateError(errors, `${errors.length} of ${members.length} could not be stopped cleanly`)
}

/** All have started, or could not, when this ends: one that is still starting could not be stopped. */
async function startAll(workers: readonly Worker[]): Promise<void> {
  const results = await Promise.allSettled(workers.map((worker) => worker.start()))
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

async function stopAll(members: readonly (Worker | Stoppable)[]): Promise<unknown[]> {
  const errors: unknown[] = []
  for (const phase of PHASES) {
    const stops = members.filter((member) => member.phase === phase).map(async (member) => member.stop())
    for (const result of await Promise.allSettled(stops)) if (result.status === 'rejected') errors.push(result.reason)
  }
  return errors
}

/** Aborted by the first SIGTERM or SIGINT; the second ends the process at once. */
export function shutdownSignal(signals: readonly NodeJS.Signals[] = ['SIGTERM', 'SIGINT']): AbortSignal {
  const controller = new AbortController()
  for (const name of signals) {
    process.on(name, () => {
      if (controller.signal.aborted) process.exit(1)
      controller.abort(new WaybillError('STOPPED', `received ${name}`))
    })
  }
  return controller.signal
}
