import { posix } from 'node:path'
import type { Findings } from './run.ts'
import { readText, type TextFile, trackedFiles } from './tracked.ts'

/** A file's name, or a path, as prose and comments write it. */
const fileName = /(?<![\w/.-])(?:[\w.-]+\/)*[\w-]+(?:\.\w+)*\.(?:ts|sql|lua)(?![\w(-]|\.\w)/g

/** Samples in the docs name files of the reader; NAME stands for any. */
const foreign = (mention: string): boolean =>
  /\bNAME\b/.test(mention) || ['./script.ts', '../support/services.ts', 'db.migrations.sql'].includes(mention)

/** Mentions of files that are gone, in text that speaks of the project's own: comments, SQL, Lua and the docs. */
export function goneIn({ path, text }: TextFile, paths: readonly string[]): string[] {
  const known = new Set(paths)
  const names = new Set(paths.map((other) => posix.basename(other)))
  const exists = (mention: string): boolean => {
    if (foreign(mention)) return true
    if (!mention.includes('/')) return names.has(mention)
    return (
      [mention, posix.join(posix.dirname(path), mention)].some((other) => known.has(other)) || isEnd(mention, paths)
    )
  }
  return text.split('\n').flatMap((line, index) => {
    const prose = path.endsWith('.ts') ? commentOf(line) : line
    const mentions = [...prose.matchAll(fileName)].map(([mention]) => mention)
    return [...new Set(mentions.filter((mention) => !exists(mention)))].map(
      (mention) => `${path}:${index + 1}  ${mention} does not exist`,
    )
  })
}

export async function gone(): Promise<Findings> {
  const paths = await trackedFiles()
  const speaking = paths.filter((path) => /\.(ts|sql|lua|md)$/.test(path) && !/\.generated\.|^CHANGELOG/.test(path))
  return { problems: readText(speaking).flatMap((file) => goneIn(file, paths)) }
}

/** `sql/pg.ts` for `src/drivers/sql/pg.ts`. */
function isEnd(mention: string, paths: readonly string[]): boolean {
  return paths.some((path) => path.endsWith(`/${mention}`))
}

function commentOf(line: string): string {
  return /^\s*(\/\/|\/?\*)/.test(line) ? line : (/\s\/\/ (.*)$/.exec(line)?.[1] ?? '')
}
