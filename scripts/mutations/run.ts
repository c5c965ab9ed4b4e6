import { atMost } from '../check/run.ts'
import { judgeBaseline, judgeFault, type Verdict } from './judge.ts'
import { type Listed, rot } from './mutation.ts'
import { runTestFile, type TestRun } from './vitest.ts'
import { openWorkspace, type Workspace } from './workspace.ts'

export interface Result extends Verdict {
  mutation: Listed
  ms: number
}

const AT_ONCE = 2
/** A file that takes longer than this without a fault has no place in the list. */
const BASELINE_TIMEOUT = 300_000

/** Plants each fault in a copy of the repository and says whether its test noticed; in the order given. */
export function runMutations(root: string, mutations: Listed[], env: NodeJS.ProcessEnv): Promise<Result>[] {
  const limited = atMost(AT_ONCE)
  const idle: Workspace[] = []
  const baselines = new Map<string, Promise<TestRun>>()

  const inWorkspace = async <T>(work: (workspace: Workspace) => Promise<T>): Promise<T> => {
    const workspace = idle.pop() ?? openWorkspace(root)
    try {
      return await work(workspace)
    } finally {
      idle.push(workspace)
    }
  }

  const judge = (mutation: Listed) =>
    inWorkspace(async (workspace): Promise<Verdict> => {
      const { folder } = workspace
      // In the copy, for the tree may have moved on since it was made.
      const rotted = rot(folder, mutation)
      if (rotted) return { verdict: 'rotted', why: rotted }

      const { test, expects } = mutation
      if (!baselines.has(test)) {
        baselines.set(test, runTestFile({ folder, file: test, env, timeout: BASELINE_TIMEOUT }))
      }
      const baseline = await baselines.get(test)!
      const red = judgeBaseline(mutation, baseline)
      if (red) return red

      // A fault often shows as a test that waits for ever; there is no need to wait for as long as `npm test` does.
      const testTimeout = Math.max(15_000, 4 * Math.max(...baseline.tests.map(({ ms }) => ms)))
      const timeout = Math.ceil(2 * baseline.ms) + testTimeout + 30_000
      const fault = { folder, file: test, only: expects, env, testTimeout, timeout }
      return judgeFault(mutation, await workspace.with(mutation, () => runTestFile(fault)))
    })

  return mutations.map((mutation) =>
    limited(async () => {
      const started = performance.now()
      const verdict = await judge(mutation)
      return { mutation, ms: Math.round(performance.now() - started), ...verdict }
    }),
  )
}
