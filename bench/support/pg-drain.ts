/** What contestants share: the process that is measured says `ready`, waits for `go`, works, and says what it cost. */
import { once } from 'node:events'
import { createInterface } from 'node:readline'

export interface Drained {
  readonly events: number
  readonly ms: number
  /** CPU microseconds of the process, all threads. */
  readonly cpu: number
  /** The most that was resident, in MB. */
  readonly residentMb: number
}

/**
 * `begin` starts the work and calls `onEvent` for every event; it returns how to finish what is under way. The clock runs
 * from when `cold` events are done: connecting, and the compiler's work, count for nobody.
 */
export async function drain(
  { events, cold = 0 }: { events: number; cold?: number },
  begin: (onEvent: (count: number) => void) => Promise<() => Promise<void>>,
): Promise<void> {
  const lines = createInterface({ input: process.stdin })
  say({ ready: true })
  await once(lines, 'line')
  let resident = 0
  const watch = setInterval(() => {
    resident = Math.max(resident, process.memoryUsage.rss())
  }, 200)
  const now = () => ({ cpu: process.cpuUsage(), at: performance.now() })
  let began = now()
  let seen = 0
  let uncounted = 0
  let reached: () => void = () => {}
  const all = new Promise<void>((resolve) => {
    reached = resolve
  })
  const finish = await begin((count) => {
    seen += count
    if (uncounted === 0 && cold > 0 && seen >= cold) {
      uncounted = seen
      began = now()
    }
    if (seen >= events) reached()
  })
  await all
  await finish()
  const ms = performance.now() - began.at
  const { user, system } = process.cpuUsage(began.cpu)
  clearInterval(watch)
  say({ events: seen - uncounted, ms, cpu: user + system, residentMb: resident / 2 ** 20 } satisfies Drained)
  // Connections stay open until the server's CPU time has been read: that of a process which ends could be missed.
  await once(lines, 'close')
}

function say(value: object): void {
  process.stdout.write(`${JSON.stringify(value)}\n`)
}
