import { manifest } from './packed.ts'
import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

/** Where users read what each import is for: the list, and a page for each. */
const INDEX = 'docs/subpaths.md'
const FOLDER = 'docs/subpaths/'

/** Every subpath has its page, which the index names, with a sample and a link to its guide; no page is about one that is gone. */
export async function subpaths(): Promise<Findings> {
  const { name, exports } = manifest()
  const there = Object.keys(exports)
    .filter((subpath) => !subpath.endsWith('.json'))
    .map((subpath) => name + subpath.slice(1))
  const pages = readText((await trackedFiles()).filter((path) => path.startsWith(FOLDER)))
  return { problems: pageProblems(there, readText([INDEX])[0]!.text, pages) }
}

export function pageProblems(there: readonly string[], index: string, pages: readonly TextFile[]): string[] {
  const texts = new Map(pages.map(({ path, text }) => [path, text]))
  const expected = new Map(
    there.map((subpath) => [`${FOLDER}${subpath.split('/').slice(1).join('-') || subpath}.md`, subpath]),
  )
  return [
    ...[...expected].flatMap(([path, subpath]) => {
      const text = texts.get(path)
      return text === undefined ? [`${path}: there is no page on ${subpath}`] : lacks(path, subpath, text, index)
    }),
    ...pages
      .filter(({ path }) => !expected.has(path))
      .map(({ path, text }) => `${path}: ${/^# `(.+)`/.exec(text)?.[1] ?? 'it'} is no subpath of the package`),
  ]
}

function lacks(path: string, subpath: string, text: string, index: string): string[] {
  const parts: [boolean, string][] = [
    [text.startsWith(`# \`${subpath}\`\n`), `its title is not ${subpath}`],
    [text.includes('**When you need it.**'), 'it does not say when you need it'],
    [new RegExp(`^\`\`\`ts\n[^]*?from '${subpath}'`, 'm').test(text), `no sample imports ${subpath}`],
    [/\]\(\.\.\/guides\/[\w-]+\.md/.test(text), 'it links to no guide'],
    [index.includes(`](${path.slice('docs/'.length)})`), `${INDEX} does not link to it`],
  ]
  return parts.flatMap(([kept, problem]) => (kept ? [] : [`${path}: ${problem}`]))
}
