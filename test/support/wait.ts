/**
 * The one way for tests to wait: looks again and again, within a limit that is below that of the test, so that a test that
 * hangs can say what it waited for. `npm run check -- waits` holds the rest: no limit of waiting is as long as its test's.
 */
import { TestRunner } from 'vitest'
import { WAIT_LIMIT } from './limits.ts'

/** Left for the test to say what it waited for, and to end what it began. */
const RESERVE = 5000

export interface Waiting {
  /** Milliseconds; never longer than the test has left. */
  readonly limit?: number
  /** The pause between two looks. */
  readonly every?: number
  /** What to say beside it: how far it came. */
  readonly seen?: () => unknown
}

/** Until `look` returns something true, which is returned. One that hangs is not waited for, and one that throws fails. */
export async function eventually<T>(
  what: string,
  look: () => T | Promise<T>,
  { limit = WAIT_LIMIT, every = 10, seen }: Waiting = {},
): Promise<NonNullable<T>> {
  const began = performance.now()
  const most = Math.min(limit, left())
  let last: unknown = 'nothing: the first look has not come back'
  for (;;) {
    const rest = most - (performance.now() - began)
    if (rest <= 0) throw new Error(`not within ${Math.round(most)} ms: ${what}; last seen: ${show(seen?.() ?? last)}`)
    const result = await soon(look, rest)
    if (result === LATE) continue
    if (result) return result as NonNullable<T>
    last = result
    await new Promise((resolve) => setTimeout(resolve, every))
  }
}

const LATE = Symbol('late')

async function soon<T>(look: () => T | Promise<T>, ms: number): Promise<T | typeof LATE> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<typeof LATE>((resolve) => {
    timer = setTimeout(() => resolve(LATE), ms)
  })
  try {
    return await Promise.race([look(), late])
  } finally {
    clearTimeout(timer)
  }
}

/** How long the test that runs now may still take, less the reserve. */
function left(): number {
  const test = TestRunner.getCurrentTest()
  const { timeout = 0, result } = test ?? {}
  if (timeout <= 0) return Number.POSITIVE_INFINITY
  const taken = result?.startTime === undefined ? 0 : Date.now() - result.startTime
  return Math.max(0, timeout - taken - Math.min(RESERVE, timeout / 4))
}

function show(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? String(value))
}
