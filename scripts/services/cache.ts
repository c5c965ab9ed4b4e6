/**
 * Downloads and other things that are slow to make, kept between runs.
 *
 * What makes this safe for several runs at once is the rename at the end: a folder under its final name is complete.
 * The lock only spares the second run the same download, so a lock that is wrongly believed stale costs time, not
 * correctness.
 */
import { randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm, stat, utimes } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { root } from './files.ts'

/** Root's home is closed to others on most machines, and the servers run as other users: they could not read it. */
export function cacheDir(): string {
  const chosen = process.env['WAYBILL_CACHE']
  if (chosen) return chosen
  return root ? '/var/cache/waybill' : join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'waybill')
}

/** Returns the folder of that key, made by `build` when it is not there yet. */
export async function cached(key: string, build: (dir: string) => Promise<void>): Promise<string> {
  const final = join(cacheDir(), key)
  if (await exists(final)) return final
  return await locked(key, async () => {
    if (await exists(final)) return final
    const draft = `${final}.${randomBytes(4).toString('hex')}.draft`
    await mkdir(draft, { recursive: true, mode: 0o755 })
    try {
      await build(draft)
      await rename(draft, final).catch(async (error) => {
        if (!(await exists(final))) throw error
      })
    } finally {
      await rm(draft, { recursive: true, force: true })
    }
    return final
  })
}

const BEAT = 500
const STALE = 10_000

/** One at a time per key on this machine, also across clones. The holder's heartbeat shows that it lives. */
export async function locked<T>(key: string, work: () => Promise<T>): Promise<T> {
  const path = `${join(cacheDir(), key)}.lock`
  await mkdir(dirname(path), { recursive: true, mode: 0o755 })
  for (;;) {
    try {
      await (await open(path, 'wx')).close()
      break
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
      const held = await stat(path).catch(() => null)
      if (held && Date.now() - held.mtimeMs > STALE) await rm(path, { force: true })
      else await sleep(50)
    }
  }
  const beat = setInterval(() => utimes(path, new Date(), new Date()).catch(() => {}), BEAT)
  try {
    return await work()
  } finally {
    clearInterval(beat)
    await rm(path, { force: true })
  }
}

export async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  )
}
