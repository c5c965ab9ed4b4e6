/** The runner's own options, and what of the command line goes on to vitest. */
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { catalog, known } from '../services/catalog.ts'
import { needed, neededLater } from '../services/needed.ts'

export const tiers = ['test', 'full', 'torture'] as const
export type Tier = (typeof tiers)[number]

export interface Options {
  tier: Tier
  services: string[]
  without: string[]
  rest: boolean
  passed: string[]
}

export function parse(argv: string[]): Options {
  let tier: Tier = 'test'
  let rest = false
  const asked: string[] = []
  const only: string[] = []
  const passed: string[] = []
  const words = argv.flatMap((word) =>
    /^--(tier|with|without)=/.test(word)
      ? [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)]
      : [word],
  )
  while (words.length) {
    const word = words.shift()!
    if (word === '--tier') tier = tierOf(words.shift())
    else if (word === '--without') asked.push(...(words.shift() ?? '').split(',').filter(Boolean))
    else if (word === '--with') only.push(...(words.shift() ?? '').split(',').filter(Boolean))
    else if (word === '--rest') rest = true
    else passed.push(word)
  }
  if (rest && tier !== 'full') throw new Error('--rest is what tier full adds over tier test: use it with --tier full')
  known([...asked, ...only])
  const wanted = new Set(only.flatMap(withNeeds))
  // Without PostgreSQL there is nothing for PgBouncer to stand in front of.
  const leftOut = (name: string): boolean =>
    asked.includes(name) || (only.length > 0 && !wanted.has(name)) || (catalog[name]?.after ?? []).some(leftOut)
  return {
    tier,
    rest,
    passed,
    services: (tier === 'test' ? needed : [...needed, ...neededLater]).filter((name) => !leftOut(name)),
    without: Object.keys(catalog).filter(leftOut),
  }
}

/** A server and those it stands in front of. */
function withNeeds(name: string): string[] {
  return [name, ...(catalog[name]?.after ?? []).flatMap(withNeeds)]
}

function tierOf(word: string | undefined): Tier {
  const tier = tiers.find((candidate) => candidate === word)
  if (!tier) throw new Error(`unknown tier '${word ?? ''}'; known: ${tiers.join(', ')}`)
  return tier
}

/** null when `--rest` has nothing to run. */
export async function vitestArguments(options: Options, home: string): Promise<string[] | null> {
  const reporter = fileURLToPath(new URL('./reporter.ts', import.meta.url))
  const reporters = ['--reporter=default', `--reporter=${reporter}`]
  if (options.tier === 'torture') {
    const at = options.passed.findIndex((word) => !word.startsWith('-'))
    if (at < 0) return [...reporters, ...options.passed]
    return [...reporters, '-t', options.passed[at]!, ...options.passed.toSpliced(at, 1)]
  }
  if (!options.rest) return [...reporters, ...options.passed]
  const filters = options.passed.filter((word) => !word.startsWith('-'))
  const flags = options.passed.filter((word) => word.startsWith('-'))
  const files = (await addedByFull(home)).filter(
    (file) => !filters.length || filters.some((part) => file.includes(part)),
  )
  return files.length ? [...reporters, ...flags, ...files] : null
}

/** The long files, and those that ask `scale()` for a size: they do more in this tier. */
async function addedByFull(home: string): Promise<string[]> {
  const names = await readdir(join(home, 'test'), { recursive: true })
  const tests = names.filter((name) => name.endsWith('.test.ts')).toSorted()
  const added = []
  for (const name of tests) {
    const scaled = async () => /support\/scale\.ts'/.test(await readFile(join(home, 'test', name), 'utf8'))
    if (name.endsWith('.full.test.ts') || (await scaled())) added.push(join('test', name))
  }
  return added
}
