import { spawn } from 'node:child_process'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'

export interface TestRun {
  tests: { name: string; state: 'passed' | 'failed' | 'other'; ms: number }[]
  /** Vitest's own verdict: also false for errors outside of tests and for a file that does not load. */
  success: boolean
  /** It hung and was ended. */
  timedOut: boolean
  ms: number
  /** What failed, as vitest tells it; what it printed, when it tells nothing. */
  output: string
}

export interface TestOptions {
  folder: string
  file: string
  /** Run only tests whose full name contains this. */
  only?: string | undefined
  env: NodeJS.ProcessEnv
  /** Milliseconds for one test, and for the whole run. */
  testTimeout?: number
  timeout: number
}

/** The part of vitest's JSON report about one test. */
interface Assertion {
  fullName: string
  status: string
  duration?: number | null
  failureMessages?: string[]
}

const running = new Set<number>()
process.once('exit', () => {
  for (const pid of running) endGroup(pid)
})

/** Runs one test file in a copy of the repository. */
export async function runTestFile(options: TestOptions): Promise<TestRun> {
  const report = join(options.folder, 'mutation-report.json')
  rmSync(report, { force: true })
  const args = ['run', options.file, '--reporter=json', `--outputFile=${report}`, '--no-cache', '--retry=0']
  if (options.only !== undefined) args.push(`--testNamePattern=${options.only.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')}`)
  if (options.testTimeout !== undefined) args.push('--bail=1', `--testTimeout=${options.testTimeout}`)
  const tier = options.file.includes('.full.test.') ? { WAYBILL_TIER: 'full' } : {}

  const started = performance.now()
  const { output, timedOut } = await inGroup(
    process.execPath,
    [join(options.folder, 'node_modules/vitest/vitest.mjs'), ...args],
    { cwd: options.folder, env: { ...options.env, ...tier, NO_COLOR: '1' }, timeout: options.timeout },
  )
  const { messages, ...rest } = parse(report)
  return { ...rest, timedOut, ms: performance.now() - started, output: messages || output }
}

function parse(report: string): Pick<TestRun, 'tests' | 'success'> & { messages: string } {
  if (!existsSync(report)) return { tests: [], success: false, messages: '' }
  const { success, testResults } = JSON.parse(readFileSync(report, 'utf8')) as {
    success: boolean
    testResults: { message: string; assertionResults: Assertion[] }[]
  }
  const assertions = testResults.flatMap(({ assertionResults }) => assertionResults)
  const failures = assertions.flatMap(({ fullName, failureMessages }) =>
    (failureMessages ?? []).map((message) => `${fullName}: ${message}`),
  )
  const tests = assertions.map(({ fullName, status, duration }) => ({
    name: fullName,
    state: status === 'passed' || status === 'failed' ? (status as 'passed' | 'failed') : ('other' as const),
    ms: duration ?? 0,
  }))
  return {
    success,
    tests,
    messages: [...testResults.map(({ message }) => message), ...failures].filter(Boolean).join('\n'),
  }
}

/** A faulty loop may never return: the whole group of processes is ended, for its workers do not hear a signal. */
function inGroup(
  command: string,
  args: string[],
  options: { cwd: string; env: NodeJS.ProcessEnv; timeout: number },
): Promise<{ output: string; timedOut: boolean }> {
  return new Promise((resolve, reject) => {
    const { timeout, ...rest } = options
    const child = spawn(command, args, { ...rest, detached: true, stdio: ['ignore', 'pipe', 'pipe'] })
    let output = ''
    let timedOut = false
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        output += text
      })
    }
    const timer = setTimeout(() => {
      timedOut = true
      endGroup(child.pid!)
    }, timeout)
    child.on('error', reject)
    if (child.pid !== undefined) running.add(child.pid)
    child.on('close', () => {
      clearTimeout(timer)
      if (child.pid !== undefined) running.delete(child.pid)
      resolve({ output, timedOut })
    })
  })
}

function endGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // It has ended by itself.
  }
}
