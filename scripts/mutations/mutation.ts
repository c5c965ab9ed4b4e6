import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'

/** A named fault: one snippet of source replaced by a wrong one, and the test that must notice. */
export interface Mutation {
  /** What goes wrong, as a reader would say it: 'the ack is sent before the commit'. */
  name: string
  /** The source file, from the repository's folder. */
  file: string
  /** The snippet, exactly as it stands in the file, where it must occur once. */
  find: string
  replace: string
  /** The test file that must turn red. */
  test: string
  /** Part of the name (with its describes) of the test that must turn red; without it, any test of the file. */
  expects?: string
  /** Servers the test uses; they are started for it, as `npm test` would. */
  needs?: string[]
}

export interface Listed extends Mutation {
  /** Name of the list, which is its file's in test/mutations/. */
  list: string
}

/** All lists: every file of test/mutations/ exports `mutations`. */
export async function loadMutations(root: string): Promise<Listed[]> {
  const folder = join(root, 'test/mutations')
  const files = readdirSync(folder).filter((name) => name.endsWith('.ts'))
  const lists = files.sort().map(async (name) => {
    const module = (await import(pathToFileURL(join(folder, name)).href)) as { mutations?: Mutation[] }
    if (!Array.isArray(module.mutations)) throw new Error(`test/mutations/${name} must export mutations: Mutation[]`)
    return module.mutations.map((mutation) => ({ ...mutation, list: basename(name, '.ts') }))
  })
  return (await Promise.all(lists)).flat()
}

/** Why the mutation no longer fits the repository, if so: then it proves nothing and must be mended. */
export function rot(root: string, { file, find, replace, test }: Mutation): string | undefined {
  for (const path of [file, test]) if (!existsSync(join(root, path))) return `${path} does not exist`
  if (find === replace) return 'find and replace are the same'
  const found = occurrences(readFileSync(join(root, file), 'utf8'), find)
  return found === 1 ? undefined : `the snippet occurs ${found} times in ${file}; it must occur once`
}

/** The faulty text. A function as replacement: `$&` and the like in the snippet mean themselves. */
export function mutate(text: string, { find, replace }: Pick<Mutation, 'find' | 'replace'>): string {
  return text.replace(find, () => replace)
}

function occurrences(text: string, snippet: string): number {
  return snippet === '' ? 0 : text.split(snippet).length - 1
}
