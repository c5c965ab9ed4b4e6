import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

interface Locked {
  resolved?: string
  integrity?: string
  link?: boolean
}

/**
 * A lockfile that names download addresses works only where those addresses are reachable: behind a mirror it does
 * not install. The version and the integrity hash say what is meant; where to get it is the machine's business.
 */
export function lockfileProblems({ path, text }: TextFile): string[] {
  const lock = JSON.parse(text) as { packages?: Record<string, Locked> }
  return Object.entries(lock.packages ?? {}).flatMap(([name, { resolved, integrity, link }]) => {
    // A package of this repository (the root, a link to a folder) is not downloaded.
    if (!name.includes('node_modules/') || link) return []
    if (resolved) return [`${path}: ${name} has a download address; .npmrc here makes npm leave it out: npm install`]
    return integrity ? [] : [`${path}: ${name} has no integrity hash`]
  })
}

export async function lockfile(): Promise<Findings> {
  const locks = (await trackedFiles()).filter((path) => /(^|\/)package-lock\.json$/.test(path))
  if (!locks.includes('package-lock.json')) return { problems: ['package-lock.json is not tracked'] }
  return { problems: readText(locks).flatMap(lockfileProblems) }
}
