import ts from 'typescript'

/**
 * How a module is named by another:
 * - `value`: loaded with the importing module (`import`, `export … from`, `require`);
 * - `type`: erased by the compiler (`import type`, `export type … from`, `import('x').T`, `/// <reference types>`);
 * - `lazy`: loaded when the code gets there (`import('x')`).
 */
export type ImportKind = 'value' | 'type' | 'lazy'

export interface Import {
  /** What is imported; undefined for `import(expression)`, whose target nobody can check. */
  specifier: string | undefined
  kind: ImportKind
  /** From 1. */
  line: number
}

/** Every import of a file, found with TypeScript's own parser. */
export function importsOf(path: string, text: string): Import[] {
  const file = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, false)
  const found: Import[] = []
  const add = (position: number, specifier: string | undefined, kind: ImportKind) =>
    found.push({ specifier, kind, line: file.getLineAndCharacterOfPosition(position).line + 1 })

  for (const reference of file.typeReferenceDirectives) add(reference.pos, reference.fileName, 'type')

  const visit = (node: ts.Node): void => {
    const position = node.getStart(file)
    if (ts.isImportDeclaration(node)) {
      // `import { type A } from 'x'` counts as a value: with verbatimModuleSyntax it still loads x at run time.
      add(position, literal(node.moduleSpecifier), node.importClause?.isTypeOnly ? 'type' : 'value')
    } else if (ts.isExportDeclaration(node) && node.moduleSpecifier) {
      add(position, literal(node.moduleSpecifier), node.isTypeOnly ? 'type' : 'value')
    } else if (ts.isImportEqualsDeclaration(node) && ts.isExternalModuleReference(node.moduleReference)) {
      add(position, literal(node.moduleReference.expression), node.isTypeOnly ? 'type' : 'value')
    } else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) {
      add(position, literal(node.argument.literal), 'type')
    } else if (ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword) {
      add(position, literal(node.arguments[0]), 'lazy')
    } else if (ts.isCallExpression(node) && ts.isIdentifier(node.expression) && node.expression.text === 'require') {
      add(position, literal(node.arguments[0]), 'value')
    }
    ts.forEachChild(node, visit)
  }
  visit(file)
  return found
}

function literal(node: ts.Node | undefined): string | undefined {
  return node && ts.isStringLiteralLike(node) ? node.text : undefined
}
