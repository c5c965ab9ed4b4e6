import ts from 'typescript'
import type { Findings } from './run.ts'
import { filesUnder, readText, type TextFile } from './tracked.ts'

/** Where users look up a code. */
const INDEX = 'docs/errors.md'

/** Every code that src/ can throw or write down stands in the error index, and the index names no code that is gone. */
export function codes(): Findings {
  const sources = filesUnder('src').filter((path) => path.endsWith('.ts'))
  return { problems: compare(readText(sources), readText([INDEX])[0]!.text) }
}

export function compare(sources: readonly TextFile[], index: string): string[] {
  const thrown = codesOf(sources)
  const texts = sources.map(({ text }) => text)
  const listed = new Set([...index.matchAll(/^\| `([A-Z][A-Z0-9_]*)` \|/gm)].map(([, code]) => code!))
  const missing = [...thrown].filter(([code]) => !listed.has(code))
  const gone = [...listed].filter((code) => !thrown.has(code) && !texts.some((text) => text.includes(`'${code}'`)))
  return [
    ...missing.map(([code, path]) => `${path}: ${code} does not stand in ${INDEX}`),
    ...gone.map((code) => `${INDEX}: ${code} is thrown nowhere`),
  ]
}

/** Functions that make an error of a code they are given: by file and name, which of their parameters it is. */
type Makers = Map<string, number>

/** Each code, and a file that has it. A function that passes a code on is found by looking again, until none is new. */
function codesOf(sources: readonly TextFile[]): Map<string, string> {
  const files = sources.map(({ path, text }) => ({
    path,
    file: ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true),
  }))
  const codes = new Map<string, string>()
  const makers: Makers = new Map()
  for (let known = -1; known < makers.size; ) {
    known = makers.size
    for (const { path, file } of files) for (const code of codesIn(file, makers)) codes.set(code, path)
  }
  return codes
}

/**
 * The first argument of `new WaybillError(…)` and of a subclass's `super(…)`, what a maker is given in its place, `code` in the
 * options of an error, and the first of a pair with a sentence, as tables of advice have them.
 */
function codesIn(file: ts.SourceFile, makers: Makers): string[] {
  const found: string[] = []
  const imported = new Set(importedBy(file))
  const note = (node: ts.Node | undefined): void => {
    if (node === undefined) return
    if (ts.isStringLiteral(node) && /^[A-Z][A-Z0-9_]+$/.test(node.text)) found.push(node.text)
    if (ts.isLiteralTypeNode(node)) note(node.literal)
    if (ts.isUnionTypeNode(node)) node.types.forEach(note)
    if (ts.isTypeReferenceNode(node)) note(declared(file, node.typeName.getText()))
    if (!ts.isConditionalExpression(node)) return
    note(node.whenTrue)
    note(node.whenFalse)
  }
  /** The code of an error: a literal, a constant of the file, or a parameter of the function around it. */
  const noteCode = (node: ts.Node | undefined): void => {
    note(node)
    if (node === undefined || !ts.isIdentifier(node)) return
    const given = parameterOf(node)
    if (given === undefined) note(declared(file, node.text))
    else {
      note(given.parameter.initializer)
      note(given.parameter.type)
      if (given.maker === undefined) return
      makers.set(`${file.fileName} ${given.maker}`, given.place)
      if (isExported(file, given.maker)) makers.set(given.maker, given.place)
    }
  }
  const visit = (node: ts.Node): void => {
    if (ts.isNewExpression(node)) {
      const [first] = node.arguments ?? []
      if (/\bWaybillError$/.test(node.expression.getText())) noteCode(first)
      else note(first)
    }
    if (ts.isCallExpression(node)) {
      const name = nameOf(node.expression)
      const place = makers.get(`${file.fileName} ${name}`) ?? (imported.has(name) ? makers.get(name) : undefined)
      if (node.expression.kind === ts.SyntaxKind.SuperKeyword) note(node.arguments[0])
      else if (place !== undefined) noteCode(node.arguments[place])
    }
    if (ts.isPropertyAssignment(node) && node.name.getText() === 'code') note(node.initializer)
    if (ts.isArrayLiteralExpression(node) && node.elements.length === 2 && isSentence(node.elements[1]!)) {
      note(node.elements[0]!)
    }
    ts.forEachChild(node, visit)
  }
  visit(file)
  return found
}

/** What a constant or type at the top of the file is. */
function declared(file: ts.SourceFile, name: string): ts.Node | undefined {
  for (const node of file.statements) {
    if (ts.isTypeAliasDeclaration(node) && node.name.text === name) return node.type
    if (!ts.isVariableStatement(node)) continue
    const one = node.declarationList.declarations.find((constant) => constant.name.getText() === name)
    if (one !== undefined) return one.initializer
  }
  return undefined
}

/** The parameter that this is, of the nearest function that has one of its name. */
function parameterOf(
  used: ts.Identifier,
): { parameter: ts.ParameterDeclaration; place: number; maker: string | undefined } | undefined {
  for (let node: ts.Node = used; !ts.isSourceFile(node); node = node.parent) {
    if (!ts.isFunctionLike(node)) continue
    const place = node.parameters.findIndex(({ name }) => name.getText() === used.text)
    if (place < 0) continue
    const named = node.name ?? (ts.isVariableDeclaration(node.parent) ? node.parent.name : undefined)
    return { parameter: node.parameters[place]!, place, maker: named?.getText() }
  }
  return undefined
}

function isExported(file: ts.SourceFile, name: string): boolean {
  return file.statements.some(
    (node) =>
      ts.isFunctionDeclaration(node) &&
      node.name?.text === name &&
      node.modifiers?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword) === true,
  )
}

function importedBy(file: ts.SourceFile): string[] {
  return file.statements.flatMap((node) => {
    const names = ts.isImportDeclaration(node) ? node.importClause?.namedBindings : undefined
    return names !== undefined && ts.isNamedImports(names) ? names.elements.map(({ name }) => name.text) : []
  })
}

function nameOf(callee: ts.Expression): string {
  return ts.isPropertyAccessExpression(callee) ? callee.name.text : callee.getText()
}

function isSentence(node: ts.Expression): boolean {
  return (
    ts.isTemplateExpression(node) ||
    (ts.isStringLiteralLike(node) && / /.test(node.text)) ||
    (ts.isIdentifier(node) && /^[A-Z]+$/.test(node.text))
  )
}
