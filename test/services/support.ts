import { type ChildProcess, spawn } from 'node:child_process'
import { chmod, cp, mkdtemp, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { onTestFinished } from 'vitest'
import { cacheDir } from '../../scripts/services/cache.ts'
import { eventually } from '../support/wait.ts'

export const home = fileURLToPath(new URL('../..', import.meta.url))

export interface Ended {
  code: number | null
  out: string
  all: string
}

export interface Script {
  child: ChildProcess
  ended: Promise<Ended>
}

/** Runs one of the repository's scripts as people do, in a process of its own; `folder` is the clone. */
export function script(path: string, args: string[], env: Record<string, string> = {}, folder = home): Script {
  const child = spawn(process.execPath, ['--import', 'tsx', path, ...args], {
    cwd: folder,
    env: { ...process.env, NO_COLOR: '1', ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let out = ''
  let all = ''
  child.stdout!.on('data', (text) => {
    out += text
    all += text
  })
  child.stderr!.on('data', (text) => {
    all += text
  })
  return { child, ended: new Promise((resolve) => child.on('close', (code) => resolve({ code, out, all }))) }
}

/** Looks again and again until it is so. */
export function until<T>(look: () => Promise<T> | T): Promise<NonNullable<T>> {
  return eventually(look.toString(), look)
}

export async function temporaryDir(): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), 'waybill-test-'))
  // Servers of other users must pass.
  await chmod(dir, 0o755)
  onTestFinished(() => rm(dir, { recursive: true, force: true }))
  return dir
}

/** A cache with a state of its own, but with the downloads that are there already. */
export async function ownCache(): Promise<string> {
  const dir = await temporaryDir()
  for (const part of ['npm', 'clusters', 'debian']) await symlink(join(cacheDir(), part), join(dir, part))
  return dir
}

/** Another clone of this repository, as far as its scripts need it. */
export async function otherClone(): Promise<string> {
  const dir = await temporaryDir()
  for (const part of ['scripts', 'package.json']) await cp(join(home, part), join(dir, part), { recursive: true })
  await symlink(join(home, 'node_modules'), join(dir, 'node_modules'))
  return dir
}
