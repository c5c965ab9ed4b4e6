import { spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

/** The repository's folder. */
export const root = dirname(dirname(dirname(fileURLToPath(import.meta.url))))

/** What a check found. Problems fail it; warnings are shown and do not. */
export interface Findings {
  problems: string[]
  warnings?: string[]
  /** What a person may want to know although all is well: a count, a size. */
  notes?: string[]
}

export interface Finished {
  code: number
  stdout: string
  stderr: string
  /** stdout and stderr as a person would have seen them. */
  output: string
}

export interface RunOptions {
  cwd?: string
  env?: NodeJS.ProcessEnv
  /** Milliseconds; a command that is still running then is ended and counts as failed. */
  timeout?: number
}

/** Runs a command to its end and keeps what it printed; never throws for a command that fails. */
export function run(command: string, args: string[], options: RunOptions = {}): Promise<Finished> {
  return new Promise((resolve) => {
    const child = spawn(command, args, {
      cwd: options.cwd ?? root,
      env: { ...process.env, NO_COLOR: '1', FORCE_COLOR: undefined, ...options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const finished: Finished = { code: 1, stdout: '', stderr: '', output: '' }
    const timer = options.timeout
      ? setTimeout(() => {
          finished.output += `\nstill running after ${options.timeout} ms, ended\n`
          child.kill('SIGKILL')
        }, options.timeout)
      : undefined
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      finished.stdout += text
      finished.output += text
    })
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      finished.stderr += text
      finished.output += text
    })
    child.on('error', (error) => {
      finished.output += `${command}: ${error.message}\n`
    })
    child.on('close', (code) => {
      clearTimeout(timer)
      resolve({ ...finished, code: code ?? 1 })
    })
  })
}

/** Runs a devDependency's executable with this Node, so that PATH does not matter. */
export function runBin(script: string, args: string[], options: RunOptions = {}): Promise<Finished> {
  return run(process.execPath, [join(root, 'node_modules', script), ...args], options)
}

/** Runs npm: the very one that runs this script, when there is one. */
export function npm(args: string[], options: RunOptions = {}): Promise<Finished> {
  const quiet = ['--loglevel=error', '--no-audit', '--no-fund', '--no-update-notifier']
  const script = process.env['npm_execpath']
  return script?.endsWith('.js')
    ? run(process.execPath, [script, ...args, ...quiet], options)
    : run('npm', [...args, ...quiet], options)
}

/** A folder of our own under the system's temporary folder, gone when this process ends. */
export function temporaryFolder(purpose: string): string {
  const folder = mkdtempSync(join(tmpdir(), `waybill-${purpose}-`))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  return folder
}

/** A command's failure as findings: nothing when it went well, what it printed when it did not. */
export function failure(what: string, { code, output }: Finished): Findings {
  return { problems: code === 0 ? [] : [`${what}:\n${output.trim() || `exit code ${code}`}`] }
}

/** Runs tasks in the order they are given, at most so many at once. */
export function atMost(count: number): <T>(task: () => Promise<T>) => Promise<T> {
  let free = count
  const waiting: (() => void)[] = []
  return async (task) => {
    if (free > 0) free--
    else await new Promise<void>((turn) => waiting.push(turn))
    try {
      return await task()
    } finally {
      const next = waiting.shift()
      if (next) next()
      else free++
    }
  }
}
