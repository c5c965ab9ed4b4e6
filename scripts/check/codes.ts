import ts from 'typescript'
import type { Findings } from './run.ts'
import { filesUnder, readText, type TextFile } from './tracked.ts'

/** Where users look up a code. */
const INDEX = 'docs/errors.md'

/** Every code that src/ can throw or write down stands in the error index, and the index names no code that is gone. */
export function codes(): Findings {
  const sources = filesUnder('src').filter((path) => path.endsWith('.ts') && !path.startsWith('src/testing/'))
  return { problems: compare(readText(sources), readText([INDEX])[0]!.text) }
}

export function compare(sources: readonly TextFile[], index: string): string[] {
  const thrown = new Map(sources.flatMap((file) => codesIn(file).map((code) => [code, file.path] as const)))
  const texts = sources.map(({ text }) => text)
  const listed = new Set([...index.matchAll(/^\| `([A-Z][A-Z0-9_]*)` \|/gm)].map(([, code]) => code!))
  const missing = [...thrown].filter(([code]) => !listed.has(code))
  const gone = [...listed].filter((code) => !thrown.has(code) && !texts.some((text) => text.includes(`'${code}'`)))
  return [
    ...missing.map(([code, path]) => `${path}: ${code} does not stand in ${INDEX}`),
    ...gone.map((code) => `${INDEX}: ${code} is thrown nowhere`),
  ]
}

/**
 * The first argument of `new WaybillError(…)` and of a subclass's `super(…)`, `code` in the options of an error, and the
 * first of a pair with a sentence, as tables of advice have them.
 */
function codesIn({ path, text }: TextFile): string[] {
  const found: string[] = []
  const note = (node: ts.Node): void => {
    if (ts.isStringLiteral(node) && /^[A-Z][A-Z0-9_]+$/.test(node.text)) found.push(node.text)
  }
  const visit = (node: ts.Node): void => {
    if (ts.isNewExpression(node) || ts.isCallExpression(node)) {
      for (const argument of (node.arguments ?? []).slice(0, 1)) {
        const named = ts.isNewExpression(node) || node.expression.kind === ts.SyntaxKind.SuperKeyword
        if (named) note(argument)
      }
    }
    if (ts.isPropertyAssignment(node) && node.name.getText() === 'code') note(node.initializer)
    if (ts.isArrayLiteralExpression(node) && node.elements.length === 2 && isSentence(node.elements[1]!)) {
      note(node.elements[0]!)
    }
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true))
  return found
}

function isSentence(node: ts.Expression): boolean {
  return (
    ts.isTemplateExpression(node) ||
    (ts.isStringLiteralLike(node) && / /.test(node.text)) ||
    (ts.isIdentifier(node) && /^[A-Z]+$/.test(node.text))
  )
}
