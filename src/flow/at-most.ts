import type { Clock } from '../core/index.ts'

/** Waits for `work`, but no longer than `ms`, and leaves no timer behind. Rejects as `work` does. */
export async function atMost(clock: Clock, ms: number, work: Promise<unknown>): Promise<void> {
  const done = new AbortController()
  try {
    await Promise.race([work, clock.sleep(ms, done.signal)])
  } finally {
    done.abort()
  }
}
