/** Starts and ends server processes, by pid only. A pid alone may be somebody else's by now: its start time tells. */
import { execFileSync, spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Launch, StopMode } from './types.ts'

/** The environment variable that marks every process of a run with the run's folder, also those a server starts. */
export const MARK = 'WAYBILL_RUN'

export interface Recorded {
  pid: number
  started: string
  role: string
  immediate: NodeJS.Signals
}

/** Spawns the process and records it; returns its pid. It leads a session of its own, so Ctrl-C passes it by. */
export function spawnLaunch(launch: Launch): Promise<number> {
  return new Promise((resolve, reject) => {
    const log = openSync(launch.log, 'a')
    const child = spawn(launch.command, launch.args, {
      cwd: launch.cwd,
      env: launch.env,
      detached: true,
      stdio: ['ignore', log, log],
      ...(launch.account ? { uid: launch.account.uid, gid: launch.account.gid } : {}),
    })
    closeSync(log)
    child.once('error', reject)
    if (child.pid === undefined) return
    record(launch.pidFile, child.pid, launch.role, launch.signals.immediate)
    child.unref()
    child.once('spawn', () => resolve(child.pid!))
  })
}

export function record(file: string, pid: number, role: string, immediate: NodeJS.Signals): void {
  const entry: Recorded = { pid, started: startTime(pid) ?? '', role, immediate }
  writeFileSync(file, JSON.stringify(entry))
}

/** The recorded process if it still runs. */
export function living(file: string): Recorded | null {
  try {
    const entry = JSON.parse(readFileSync(file, 'utf8')) as Recorded
    return startTime(entry.pid) === entry.started ? entry : null
  } catch {
    return null
  }
}

const SIGKILL_AFTER = 30_000

/** Returns when the process is gone. */
export async function endLaunch(launch: Launch, mode: StopMode): Promise<void> {
  const entry = living(launch.pidFile)
  if (entry) await end(entry, mode === 'kill' ? 'SIGKILL' : launch.signals[mode], SIGKILL_AFTER)
  rmSync(launch.pidFile, { force: true })
}

export async function end(entry: Pick<Recorded, 'pid' | 'started'>, first: NodeJS.Signals, grace: number) {
  const gone = () => startTime(entry.pid) !== entry.started
  for (const [signal, patience] of [
    [first, grace],
    ['SIGKILL', 10_000],
  ] as const) {
    if (gone()) return
    try {
      process.kill(entry.pid, signal)
    } catch {
      return
    }
    for (const until = Date.now() + patience; Date.now() < until; await sleep(5)) if (gone()) return
  }
  throw new Error(`process ${entry.pid} does not end`)
}

/** Something that differs when a pid is used again; undefined for a process that has ended, also when unreaped. */
export function startTime(pid: number): string | undefined {
  try {
    if (process.platform !== 'linux') {
      return (
        execFileSync('ps', ['-o', 'lstart=', '-p', String(pid)], { stdio: 'pipe' })
          .toString()
          .trim() || undefined
      )
    }
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    // The second field is the program's name in parentheses and may hold spaces.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' || fields[0] === 'X' ? undefined : fields[19]
  } catch {
    return undefined
  }
}

/** All processes that carry the run's mark (where the system shows it): helpers that servers left behind, too. */
export async function marked(run: string): Promise<{ pid: number; started: string; role: string }[]> {
  if (process.platform !== 'linux') return []
  const found = []
  for (const name of await readdir('/proc')) {
    const pid = Number(name)
    if (!pid || pid === process.pid) continue
    const environment = await readFile(`/proc/${pid}/environ`, 'latin1').catch(() => '')
    if (!environment.split('\0').includes(`${MARK}=${run}`)) continue
    const started = startTime(pid)
    const role = (await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')).trim()
    if (started) found.push({ pid, started, role })
  }
  return found
}
