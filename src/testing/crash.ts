import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { appendFileSync, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { WaybillError } from '../core/index.ts'
import { within } from './conformance.ts'

/** Names the point at which the process kills itself: `relay.after-publish`, or `…#3` for the third time it gets there. */
const CRASH_AT = 'WAYBILL_CRASH_AT'
/** The file in which a process notes the points it reached: it must outlive the kill. */
const CRASH_LOG = 'WAYBILL_CRASH_LOG'

/** The last line of that file when the process killed itself. */
const CRASHED = '#'

const counts = new Map<string, number>()

/**
 * A place where a process may be killed, in a script that `runScript` or `runUntilCrash` started. It does nothing
 * unless this is the point that was asked for; then the process gets SIGKILL, and nothing after it runs: no `finally`,
 * no exit handler, no buffered write. It belongs into test scripts (see `crashingPublisher`), not into product code.
 */
export function crashPoint(name: string): void {
  const log = process.env[CRASH_LOG]
  if (log === undefined) return
  const count = (counts.get(name) ?? 0) + 1
  counts.set(name, count)
  if (count === 1) appendFileSync(log, `${name}\n`)
  const [at, nth = '1'] = (process.env[CRASH_AT] ?? '').split('#')
  if (at !== name || Number(nth) !== count) return
  appendFileSync(log, `${CRASHED}\n`)
  process.kill(process.pid, 'SIGKILL')
  // The signal may take a moment to arrive. Nothing may happen in it.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
}

/** The crash points of a suite, as a list that can be gone through and checked with `everyPointHit`. */
export function crashPoints<const Names extends readonly string[]>(names: Names): Names {
  const bad = names.find((name, i) => name === '' || name.includes('#') || names.indexOf(name) !== i)
  if (bad !== undefined) {
    throw new WaybillError('INVALID_OPTION', `crash point "${bad}": names are unique, not empty and without #`)
  }
  return Object.freeze(names)
}

/** A script to run in a process of its own, to be killed or suspended. */
export interface ScriptOptions {
  /** The file to run; a URL such as `new URL('./script.ts', import.meta.url)` will do. */
  script: string | URL
  args?: readonly string[]
  env?: Readonly<Record<string, string>>
  /** Where to kill it: the name of a crash point, or `name#3` for the third time. */
  at?: string
  /** Node's own arguments. Default: `--import tsx` for TypeScript, nothing otherwise. */
  nodeArgs?: readonly string[]
  cwd?: string
  /** How long it may run, in milliseconds, before it is killed and the result is an error. Default 60 s. */
  timeout?: number
}

/** How a script ended, and what it printed. */
export interface ScriptResult {
  readonly at: string | undefined
  /** It was killed at the point that was asked for. */
  readonly crashed: boolean
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  /** The crash points it reached, in the order it first did. */
  readonly hits: readonly string[]
  readonly stdout: string
  readonly stderr: string
}

/** A script in a process of its own. */
export interface RunningScript {
  readonly pid: number
  readonly stdout: string
  readonly stderr: string
  /**
   * Resolves with the first line of its output that contains the text, printed already or still to come. Rejects after
   * `limit` milliseconds, by default 60 s: a busy machine may take long to start a process.
   */
  line(text: string, limit?: number): Promise<string>
  /** Stops it in its tracks (SIGSTOP): alive for everybody else, and doing nothing. */
  pause(): void
  resume(): void
  kill(signal?: NodeJS.Signals): void
  readonly finished: Promise<ScriptResult>
}

const running = new Set<ChildProcess>()
let watching = false

/** Runs a script in a process of its own, which ends with ours at the latest. */
export function runScript(options: ScriptOptions): RunningScript {
  const { at, timeout = 60_000 } = options
  const script = options.script instanceof URL ? fileURLToPath(options.script) : options.script
  if (!existsSync(script)) throw new WaybillError('INVALID_OPTION', `there is no script ${script}`)
  const nodeArgs = options.nodeArgs ?? (/\.[cm]?tsx?$/.test(script) ? ['--import', 'tsx'] : [])
  const folder = mkdtempSync(join(tmpdir(), 'waybill-crash-'))
  const log = join(folder, 'points')
  const inherited = Object.entries(process.env).filter(([name]) => name !== CRASH_AT)
  const env = { ...Object.fromEntries(inherited), ...options.env, [CRASH_LOG]: log }
  const child = spawn(process.execPath, [...nodeArgs, script, ...(options.args ?? [])], {
    cwd: options.cwd ?? process.cwd(),
    env: at === undefined ? env : { ...env, [CRASH_AT]: at },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  endWithUs(child)
  const output = { stdout: '', stderr: '' }
  const listeners = new Set<() => void>()
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (text: string) => {
      output[name] += text
      for (const listener of listeners) listener()
    })
  }
  const ended = new Promise<ScriptResult>((resolve, reject) => {
    child.on('error', reject)
    child.on('close', (code, signal) => {
      const lines = existsSync(log) ? readFileSync(log, 'utf8').split('\n').filter(Boolean) : []
      const hits = lines.filter((line) => line !== CRASHED)
      resolve({ at, crashed: lines.length > hits.length, code, signal, hits, ...output })
    })
  }).finally(() => {
    running.delete(child)
    rmSync(folder, { recursive: true, force: true })
  })
  const finished = within(timeout, ended, () => `${script} has not ended; ${tail(output)}`).finally(async () => {
    if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
    const gone = once(child, 'exit')
    child.kill('SIGKILL')
    await gone
  })
  finished.catch(() => {}) // whoever waits for it gets the error
  return {
    pid: child.pid ?? 0,
    get stdout() {
      return output.stdout
    },
    get stderr() {
      return output.stderr
    },
    async line(text, limit = 60_000) {
      let stop = () => {}
      const found = new Promise<string>((resolve, reject) => {
        const look = () => {
          const line = output.stdout.split('\n').find((one) => one.includes(text))
          if (line !== undefined) resolve(line)
        }
        listeners.add(look)
        stop = () => listeners.delete(look)
        look()
        ended.then(
          () => reject(new WaybillError('ENDED', `${script} ended without "${text}"; ${tail(output)}`)),
          reject,
        )
      })
      return await within(limit, found, () => `no line with "${text}"; ${tail(output)}`).finally(() => stop())
    },
    pause: () => pauseProcess(child.pid!),
    resume: () => resumeProcess(child.pid!),
    kill: (signal = 'SIGKILL') => void child.kill(signal),
    finished,
  }
}

/** Runs a script until it is killed at the point `at`, or ends by itself because it never got there. */
export function runUntilCrash(options: ScriptOptions & { at: string }): Promise<ScriptResult> {
  return runScript(options).finished
}

/**
 * Fails when a point of the list was never reached in any of the runs, or when a run reached one that is not on the
 * list: then the suite does not test what it says.
 */
export function everyPointHit(points: readonly string[], results: readonly Pick<ScriptResult, 'hits'>[]): void {
  const hits = new Set(results.flatMap((result) => result.hits))
  const missed = points.filter((point) => !hits.has(point))
  const unlisted = [...hits].filter((hit) => !points.includes(hit))
  if (missed.length === 0 && unlisted.length === 0) return
  const problems = [
    ...missed.map((point) => `${point} was never reached`),
    ...unlisted.map((hit) => `${hit} was reached but is not on the list`),
  ]
  throw new WaybillError('CRASH_POINTS', problems.join('; '))
}

/** Freezes a process: to the rest of the world it is silent, not dead. */
export function pauseProcess(pid: number): void {
  process.kill(pid, 'SIGSTOP')
}

/** Lets a suspended process go on (SIGCONT). */
export function resumeProcess(pid: number): void {
  process.kill(pid, 'SIGCONT')
}

function endWithUs(child: ChildProcess): void {
  running.add(child)
  if (watching) return
  watching = true
  process.on('exit', () => {
    for (const one of running) one.kill('SIGKILL')
  })
}

function tail({ stdout, stderr }: { stdout: string; stderr: string }): string {
  return `it printed: ${`${stdout}${stderr}`.slice(-2000)}`
}
