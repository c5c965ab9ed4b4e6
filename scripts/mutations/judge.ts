import type { Mutation } from './mutation.ts'
import type { TestRun } from './vitest.ts'

export interface Verdict {
  verdict: 'killed' | 'SURVIVED' | 'rotted'
  /** Who noticed, or why nobody could. */
  why: string
}

type Outcome = Pick<TestRun, 'tests' | 'success' | 'timedOut' | 'output'>

/** Without the fault the test must be green: a test that is always red would kill every mutation. */
export function judgeBaseline({ test, expects }: Mutation, run: Outcome): Verdict | undefined {
  const wanted = run.tests.filter(({ name }) => expects === undefined || name.includes(expects))
  const passed = wanted.filter(({ state }) => state === 'passed')
  const red = (why: string): Verdict => ({ verdict: 'rotted', why: `${why}\n${excerpt(run.output)}`.trim() })
  if (run.timedOut) return red(`${test} does not end, without the fault`)
  if (wanted.some(({ state }) => state === 'failed')) return red(`${test} is red without the fault`)
  if (expects === undefined && !run.success) return red(`${test} is red without the fault`)
  if (passed.length > 0) return undefined
  return {
    verdict: 'rotted',
    why: `${test} runs no test${expects === undefined ? '' : ` whose name contains '${expects}'`}`,
  }
}

export function judgeFault({ test, expects }: Mutation, run: Outcome): Verdict {
  if (run.timedOut) return { verdict: 'killed', why: 'the test hung and was ended' }
  const failed = run.tests.find(({ name, state }) => state === 'failed' && (!expects || name.includes(expects)))
  if (failed) return { verdict: 'killed', why: failed.name }
  if (run.tests.length === 0) {
    // Nothing was tested: most likely the faulty file is not even valid code, which any test would notice.
    return { verdict: 'rotted', why: `${test} does not load with the fault in\n${excerpt(run.output)}`.trim() }
  }
  if (!expects && !run.success) return { verdict: 'killed', why: 'an error outside of the tests' }
  return { verdict: 'SURVIVED', why: `${test} stays green${expects ? ` ('${expects}')` : ''}` }
}

/** The beginning, without the frames of the test runner. */
function excerpt(output: string): string {
  const lines = output.trim().split('\n')
  return lines
    .filter((line) => !/^\s+at .*(node_modules|<anonymous>)/.test(line))
    .slice(0, 20)
    .join('\n')
}
