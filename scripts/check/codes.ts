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

/** The first argument of `new WaybillError(…)`, of a subclass's `super(…)`, and of helpers that take a code first. */
function codesIn({ path, text }: TextFile): string[] {
  const found: string[] = []
  const visit = (node: ts.Node): void => {
    if (ts.isNewExpression(node) || ts.isCallExpression(node)) {
      for (const argument of (node.arguments ?? []).slice(0, 1)) {
        const named = ts.isNewExpression(node) || node.expression.kind === ts.SyntaxKind.SuperKeyword
        if (named && ts.isStringLiteral(argument) && /^[A-Z][A-Z0-9_]+$/.test(argument.text)) found.push(argument.text)
      }
    }
    ts.forEachChild(node, visit)
  }
  visit(ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true))
  return found
}
