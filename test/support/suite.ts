import { test } from 'vitest'
import type { Suite } from '../../src/testing/index.ts'

/** The cases of a conformance suite as tests. One that is skipped says why, and the end of the run repeats it. */
export function runSuite(
  suite: Suite,
  { named = (name) => name, ...options }: { timeout?: number; named?: (name: string) => string } = {},
): void {
  for (const { name, skip, run } of suite) {
    test(named(name), options, async (context) => {
      context.skip(skip !== undefined, skip)
      await run()
    })
  }
}
