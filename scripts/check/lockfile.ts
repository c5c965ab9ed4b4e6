import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

interface Locked {
  resolved?: string
  integrity?: string
  link?: boolean
  optionalDependencies?: Record<string, string>
}

/**
 * A lockfile that names download addresses works only where those addresses are reachable: behind a mirror it does
 * not install. The version and the integrity hash say what is meant; where to get it is the machine's business.
 *
 * One that misses the builds for other platforms (npm leaves out, in silence, what the registry did not have yet when
 * it was written) is refused by `npm ci` everywhere.
 */
export function lockfileProblems({ path, text }: TextFile): string[] {
  const { packages = {} } = JSON.parse(text) as { packages?: Record<string, Locked> }
  const locked = new Set(Object.keys(packages).map((place) => place.split('node_modules/').at(-1)!))
  return Object.entries(packages).flatMap(([name, { resolved, integrity, link, optionalDependencies = {} }]) => {
    const missing = Object.keys(optionalDependencies).filter((dependency) => !locked.has(dependency))
    const problems = missing.map((dependency) => `${path}: ${name} needs ${dependency}, which is not locked`)
    // A package of this repository (the root, a link to a folder) is not downloaded.
    if (!name.includes('node_modules/') || link) return problems
    if (resolved) problems.push(`${path}: ${name} has a download address; .npmrc here makes npm leave it out`)
    if (!integrity) problems.push(`${path}: ${name} has no integrity hash`)
    return problems
  })
}

export async function lockfile(): Promise<Findings> {
  const locks = (await trackedFiles()).filter((path) => /(^|\/)package-lock\.json$/.test(path))
  if (!locks.includes('package-lock.json')) return { problems: ['package-lock.json is not tracked'] }
  return { problems: readText(locks).flatMap(lockfileProblems) }
}
