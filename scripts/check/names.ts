import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import ts from 'typescript'
import { type Findings, root } from './run.ts'

/** The committed list. A change of it is a change of what users may rely on, and is seen in review. */
export const LIST = 'scripts/check/public-names.txt'

export interface PublicName {
  readonly subpath: string
  readonly name: string
  readonly kind: 'value' | 'type'
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
    kind: target.flags & ts.SymbolFlags.Value ? 'value' : 'type',
    documented: target.getDocumentationComment(checker).length > 0,
  }
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

export function names(): Findings {
  const found = publicNames()
  const problems = nameProblems(found, readFileSync(join(root, LIST), 'utf8'))
  return { problems, notes: [`${found.filter(({ subpath }) => subpath === 'waybill').length} at the root`] }
}

if (process.argv[1]?.endsWith('names.ts')) writeFileSync(join(root, LIST), listing(publicNames()))
