import { checkOptions, type Duration, describe, onAbort, WaybillError } from '../core/index.ts'
import { Supervisor } from './supervisor.ts'
import type { Stoppable, Worker } from './worker.ts'

export interface RunOptions {
  /** Ends the run; `shutdownSignal()` is wired to SIGTERM and SIGINT. */
  signal: AbortSignal
  /**
   * How long the stop of one member is waited for. Then it is an error, and the next phase is stopped: a `stop` that hangs
   * must not keep the others open. Longer than what its members need, such as their `grace`. Default 1 minute.
   */
  stopWithin?: Duration
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
  checkOptions('run', options, { signal: true, stopWithin: true })
  if (!(options?.signal instanceof AbortSignal)) {
    throw new WaybillError(
      'INVALID_OPTION',
      'run: a signal is needed to know when to stop; give { signal: shutdownSignal() }',
    )
  }
  const whole = new Supervisor({ name: 'run', stopWithin: options.stopWithin ?? '1m' })
  for (const member of members) await whole.add(member, 'fatal')
  const { signal } = options
  if (signal.aborted) return whole.stop()
  let stopping: Promise<void> | undefined
  const stop = () => {
    stopping = whole.stop()
    stopping.catch(() => {}) // `finished` rejects too
  }
  const forget = onAbort(signal, stop)
  try {
    await whole.start()
    await whole.finished
  } catch (error) {
    // It was stopped while somebody was starting, and could not wait for that.
    if (stopping === undefined || (error as Partial<WaybillError>)?.code !== 'STOPPED') throw error
    await stopping
  } finally {
    forget()
  }
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
