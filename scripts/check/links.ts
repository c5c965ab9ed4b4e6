import { posix } from 'node:path'
import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

/** Every link of every page leads to a file or folder that git tracks, and to a heading that is there. */
export async function links(): Promise<Findings> {
  const paths = await trackedFiles()
  const pages = readText(paths.filter((path) => path.endsWith('.md')))
  const { problems, count } = brokenIn(pages, paths)
  return { problems, notes: [`${count} links in ${pages.length} pages`] }
}

export function brokenIn(
  pages: readonly TextFile[],
  paths: readonly string[],
): { readonly problems: string[]; readonly count: number } {
  const known = new Set(paths)
  for (const path of paths) for (let at = posix.dirname(path); at !== '.'; at = posix.dirname(at)) known.add(at)
  const anchors = new Map(pages.map(({ path, text }) => [path, anchorsOf(text)] as const))
  const found = pages.flatMap(({ path, text }) =>
    linksIn(text).map(({ target, line }) => {
      const [file = '', anchor] = target.split('#')
      const to = file === '' ? path : posix.join(posix.dirname(path), decodeURI(file)).replace(/\/$/, '')
      if (!known.has(to)) return `${path}:${line}  ${target}: ${to} does not exist`
      if (anchor === undefined || /^L\d+/.test(anchor)) return undefined
      const there = anchors.get(to)
      if (there === undefined) return `${path}:${line}  ${target}: only pages have anchors`
      return there.has(anchor) ? undefined : `${path}:${line}  ${target}: ${to} has no heading #${anchor}`
    }),
  )
  return { problems: found.filter((problem) => problem !== undefined), count: found.length }
}

interface Link {
  readonly target: string
  readonly line: number
}

/** Links and pictures of Markdown, `src` and `href` of HTML. What leads to other sites is theirs. */
function linksIn(text: string): Link[] {
  const form = /\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^\[[^\]]+\]:\s+(\S+)|\b(?:src|srcset|href)="([^"]+)"/g
  return proseOf(text).flatMap((line, index) =>
    [...line.matchAll(form)]
      .map(([, inline, reference, html]) => ({ target: (inline ?? reference ?? html)!, line: index + 1 }))
      .filter(({ target }) => !/^[a-z]+:/.test(target)),
  )
}

/** Headings as GitHub names them, and ids that were set by hand. A repeated heading gets a number. */
function anchorsOf(text: string): ReadonlySet<string> {
  const found = new Set<string>()
  const times = new Map<string, number>()
  for (const line of proseOf(text, false)) {
    for (const [, id] of line.matchAll(/<a\s[^>]*\b(?:id|name)="([^"]+)"/g)) found.add(id!)
    const heading = /^#{1,6}\s+(.*?)\s*#*$/.exec(line)?.[1]
    if (heading === undefined) continue
    const slug = slugOf(heading)
    const before = times.get(slug) ?? 0
    times.set(slug, before + 1)
    found.add(before === 0 ? slug : `${slug}-${before}`)
  }
  return found
}

function slugOf(heading: string): string {
  return heading
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replace(/\s/g, '-')
}

/** The lines of a page without its samples, which keep their number. */
function proseOf(text: string, withoutCode = true): string[] {
  let fence: string | undefined
  return text.split('\n').map((line) => {
    const mark = /^\s*(```+|~~~+)/.exec(line)?.[1]
    if (mark !== undefined && (fence === undefined || mark.startsWith(fence))) {
      fence = fence === undefined ? mark : undefined
      return ''
    }
    if (fence !== undefined) return ''
    return withoutCode ? line.replace(/`[^`]*`/g, '') : line
  })
}
