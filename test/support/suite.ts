import { test } from 'vitest'
import type { Suite } from '../../src/testing/index.ts'

interface RunOptions {
  timeout?: number
  named?: (name: string) => string
  /** Several cases at once: they mostly wait, each with what it has made for itself. */
  concurrent?: boolean
}

/** The cases of a conformance suite as tests. One that is skipped says why, and the end of the run repeats it. */
export function runSuite(suite: Suite, { named = (name) => name, ...options }: RunOptions = {}): void {
  for (const { name, skip, run } of suite) {
    test(named(name), options, async (context) => {
      context.skip(skip !== undefined, skip)
      await run()
    })
  }
}
