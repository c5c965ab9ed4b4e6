/**
 * A run: a private folder, the processes recorded in it, and a watchdog that ends them when the process that opened
 * the run dies, in whatever way. The watchdog holds the read end of a pipe whose write end only the opener has: the
 * kernel closes it even after SIGKILL.
 */
import { spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chmod, mkdir, readdir, rm } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { endContainers } from './docker.ts'
import { end, living, MARK, marked } from './process.ts'

export interface Run {
  dir: string
  /** Ends every process of the run, removes its folder, and returns the roles of those that had been left behind. */
  close(): Promise<string[]>
}

export async function openRun(): Promise<Run> {
  const dir = await newRunDir()
  const pipe = guard(dir)
  return {
    dir,
    async close() {
      const left = await sweep(dir)
      await rm(dir, { recursive: true, force: true })
      pipe?.end()
      return left
    },
  }
}

/** The servers' users must pass through this folder to their own, but need not list it. */
export async function newRunDir(): Promise<string> {
  const dir = join(tmpdir(), `waybill-${randomBytes(6).toString('hex')}`)
  await mkdir(join(dir, 'pids'), { recursive: true })
  await chmod(dir, 0o711)
  return dir
}

function guard(dir: string) {
  const tsx = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href
  const script = fileURLToPath(new URL('./watchdog.ts', import.meta.url))
  // Without the mark: a sweep must not end its own watchdog, nor that of a run inside this one.
  const { [MARK]: _, NODE_OPTIONS: __, ...env } = process.env
  const child = spawn(process.execPath, ['--import', tsx, script, dir], {
    cwd: '/',
    env,
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  })
  child.unref()
  const pipe = child.stdin
  pipe?.on('error', () => {})
  ;(pipe as unknown as { unref(): void }).unref()
  return pipe
}

/** Asks first (SIGKILL would leave PostgreSQL's shared memory behind), then insists. */
export async function sweep(dir: string): Promise<string[]> {
  const folder = join(dir, 'pids')
  const files = await readdir(folder).catch(() => [])
  const entries = files.map((name) => living(join(folder, name))).filter((entry) => entry !== null)
  await Promise.all(entries.map((entry) => end(entry, entry.immediate, 5_000)))
  const rest = await marked(dir)
  await Promise.all(rest.map((entry) => end(entry, 'SIGKILL', 5_000)))
  const containers = await endContainers(dir)
  return [...entries.map((entry) => entry.role), ...rest.map((entry) => entry.role), ...containers]
}
