/**
 * Time, injected: logic never asks the system. Leases that several machines must agree on use the database's
 * clock instead; this one is for pauses and for deadlines a process keeps for itself.
 */
export interface Clock {
  /** Milliseconds since the epoch. May jump. */
  now(): number
  /** Milliseconds that only grow, also while the process was suspended as far as the system allows. */
  monotonic(): number
  /** Resolves after `ms`, or at once when `signal` aborts. Never rejects. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>
}

/** Longest delay a Node timer can hold; a longer sleep is cut into pieces. */
const MAX_TIMER = 2_147_483_647

/** The clock of this machine. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  sleep(ms, signal) {
    if (signal?.aborted) return Promise.resolve()
    return new Promise((resolve) => {
      let left = ms
      let timer: NodeJS.Timeout
      const done = () => {
        clearTimeout(timer)
        signal?.removeEventListener('abort', done)
        resolve()
      }
      const wait = () => {
        const piece = Math.min(left, MAX_TIMER)
        left -= piece
        timer = setTimeout(left > 0 ? wait : done, piece)
      }
      wait()
      signal?.addEventListener('abort', done)
    })
  },
}
