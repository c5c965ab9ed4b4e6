/** What is to be done for each signal. */
const waiting = new WeakMap<AbortSignal, Set<() => void>>()

/**
 * Calls `fn` when `signal` aborts, which must not throw; what it returns takes that back. A signal that has aborted
 * calls nobody. A flow has one signal for all its handlers: a listener for each would cost more than the rest of the
 * inbox does, and Node takes more than ten for a leak.
 */
export function whenAborted(signal: AbortSignal, fn: () => void): () => void {
  const known = waiting.get(signal) ?? begin(signal)
  known.add(fn)
  return () => known.delete(fn)
}

function begin(signal: AbortSignal): Set<() => void> {
  const fns = new Set<() => void>()
  waiting.set(signal, fns)
  const call = () => {
    for (const fn of fns) fn()
  }
  signal.addEventListener('abort', call, { once: true })
  return fns
}

/** What `promise` says; `instead` when the signal aborts first. */
export function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined, instead: T): Promise<T> {
  if (signal === undefined) return promise
  return new Promise((resolve, reject) => {
    const forget = whenAborted(signal, () => resolve(instead))
    if (signal.aborted) resolve(instead)
    promise.then(
      (value) => {
        forget()
        resolve(value)
      },
      (error) => {
        forget()
        reject(error)
      },
    )
  })
}
