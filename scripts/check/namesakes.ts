import { posix } from 'node:path'
import ts from 'typescript'
import type { Findings } from './run.ts'
import { filesUnder, readText, type TextFile } from './tracked.ts'

/** Public names that users know, each under its own subpath. */
const ALLOWED = new Map([['Handle', 'a handler of messages at the root, of web requests in waybill/http']])

/**
 * One name, one meaning: an interface, type, class or enum of the same name in two files of `src/` is a mistake, unless the
 * files have one name themselves. Those have the same role in different folders (`row.ts` of each store).
 */
export function namesakeProblems(files: readonly TextFile[]): string[] {
  const places = new Map<string, string[]>()
  for (const { path, text } of files) {
    for (const name of declaredIn(path, text)) places.set(name, [...(places.get(name) ?? []), path])
  }
  return [...places]
    .filter(([name, paths]) => !ALLOWED.has(name) && new Set(paths.map((path) => posix.basename(path))).size > 1)
    .map(([name, paths]) => `${name} is declared in ${paths.join(', ')}: give each a name of its own`)
}

/** Names at the top of the file, each once: overloads and merged declarations are one. */
function declaredIn(path: string, text: string): Set<string> {
  const names = new Set<string>()
  for (const node of ts.createSourceFile(path, text, ts.ScriptTarget.Latest).statements) {
    const isType = ts.isInterfaceDeclaration(node) || ts.isTypeAliasDeclaration(node) || ts.isEnumDeclaration(node)
    if ((isType || ts.isClassDeclaration(node)) && node.name) names.add(node.name.text)
  }
  return names
}

export function namesakes(): Findings {
  const paths = filesUnder('src').filter((path) => path.endsWith('.ts') && !path.includes('.generated.'))
  return { problems: namesakeProblems(readText(paths)) }
}
