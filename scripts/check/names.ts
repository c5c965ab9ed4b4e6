import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import ts from 'typescript'
import { type Findings, root } from './run.ts'
import { readText, trackedFiles } from './tracked.ts'

/** The committed list. A change of it is a change of what users may rely on, and is seen in review. */
export const LIST = 'scripts/check/public-names.txt'

export interface PublicName {
  readonly subpath: string
  readonly name: string
  readonly kind: 'value' | 'class' | 'type'
  /** Its comment has at least one sentence. */
  readonly documented: boolean
}

/** Every name that an import of the package, or of one of its subpaths, gives. Read from the sources by TypeScript. */
export function publicNames(): PublicName[] {
  const { exports } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { exports: object }
  const entries = Object.entries(exports)
    .filter((entry): entry is [string, { default: string }] => typeof entry[1] === 'object')
    .map(([subpath, { default: built }]) => ({
      subpath: subpath.replace(/^\./, 'waybill'),
      file: join(root, built.replace('./dist/', 'src/').replace(/\.js$/, '.ts')),
    }))
  const config = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile)
  const { options } = ts.parseJsonConfigFileContent(config.config, ts.sys, root)
  const program = ts.createProgram(
    entries.map(({ file }) => file),
    { ...options, noEmit: true },
  )
  const checker = program.getTypeChecker()
  return entries.flatMap(({ subpath, file }) => {
    const module = checker.getSymbolAtLocation(program.getSourceFile(file)!)!
    return checker.getExportsOfModule(module).map((symbol) => nameOf(checker, subpath, symbol))
  })
}

function nameOf(checker: ts.TypeChecker, subpath: string, symbol: ts.Symbol): PublicName {
  const target = symbol.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(symbol) : symbol
  return {
    subpath,
    name: symbol.name,
    kind: kindOf(target.flags),
    documented: hasSentence(ts.displayPartsToString(target.getDocumentationComment(checker))),
  }
}

function kindOf(flags: ts.SymbolFlags): PublicName['kind'] {
  if (flags & ts.SymbolFlags.Class) return 'class'
  return flags & ts.SymbolFlags.Value ? 'value' : 'type'
}

/** Three words and a full stop: a name that is repeated, or a snippet alone, says nothing. */
export function hasSentence(comment: string): boolean {
  return /\S+\s+\S+\s+\S.*[.:](\s|$)/s.test(comment)
}

export function listing(names: readonly PublicName[]): string {
  const lines = names.map(({ subpath, name, kind }) => `${subpath}  ${name}${kind === 'type' ? '  (type)' : ''}`)
  return `${[...new Set(lines)].sort().join('\n')}\n`
}

/** What is not in the list, what is in the list only, and what has no doc comment. */
export function nameProblems(found: readonly PublicName[], list: string): string[] {
  const now = new Set(listing(found).trimEnd().split('\n'))
  const before = new Set(list.trimEnd().split('\n'))
  const added = [...now].filter((line) => !before.has(line)).map((line) => `new: ${line}`)
  const removed = [...before].filter((line) => !now.has(line)).map((line) => `gone: ${line}`)
  const problems = [...removed, ...added]
  if (problems.length > 0) problems.push(`write the list anew with: npx tsx scripts/check/names.ts`)
  for (const { subpath, name, documented } of found) {
    if (!documented) problems.push(`${subpath} ${name} has no doc comment; say in a sentence what it is`)
  }
  return problems
}

/** Where users write `new`. Of the others most classes are what a function returns, which is on a page. */
const NEWED = ['waybill', 'waybill/adapter', 'waybill/testing']

/** What is on no page. Types are asked for at the root only: the others belong to what takes or returns them. */
export function unexplained(found: readonly PublicName[], pages: readonly string[]): string[] {
  const words = new Set(pages.flatMap((page) => page.match(/\w+/g) ?? []))
  return found
    .filter(
      ({ kind, subpath }) => kind === 'value' || subpath === 'waybill' || (kind === 'class' && NEWED.includes(subpath)),
    )
    .filter(({ name }) => !words.has(name))
    .map(({ subpath, name }) => `${subpath} ${name} is on no page; say in docs/ when one needs it`)
}

/** Pages for users: what was decided, and what tests show, explains no name. */
async function pagesForUsers(): Promise<string[]> {
  const paths = (await trackedFiles()).filter((path) => /^(README|docs\/.*)\.md$/.test(path))
  return readText(paths.filter((path) => !/^docs\/(decisions\/|readiness)/.test(path))).map(({ text }) => text)
}

export async function names(): Promise<Findings> {
  const found = publicNames()
  const listed = nameProblems(found, readFileSync(join(root, LIST), 'utf8'))
  const problems = [...listed, ...unexplained(found, await pagesForUsers())]
  return { problems, notes: [`${found.filter(({ subpath }) => subpath === 'waybill').length} at the root`] }
}

if (process.argv[1]?.endsWith('names.ts')) writeFileSync(join(root, LIST), listing(publicNames()))
