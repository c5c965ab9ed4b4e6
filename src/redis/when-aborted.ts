/** What is to be done for each signal. */
const waiting = new WeakMap<AbortSignal, Set<() => void>>()

/**
 * Calls `fn` when `signal` aborts; what it answers takes that back. A flow has one signal for all its handlers: a
 * listener for each would cost more than the rest of the inbox does here, and Node takes more than ten for a leak.
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
