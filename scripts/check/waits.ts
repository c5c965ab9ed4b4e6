import ts from 'typescript'
import { TEST_LIMITS } from '../../test/support/limits.ts'
import type { Findings } from './run.ts'
import { filesUnder, readText, type TextFile } from './tracked.ts'

/** What waits in real time, with its limit as the last number it is given. */
const WAITERS = new Set(['until', 'eventually', 'line', 'arrived', 'settled', 'next', 'receive', 'within', 'poll'])

/** Where a limit may be the default of a parameter or the value of an option. */
const LIMITS = new Set(['limit', 'within', 'patience'])

/** Own loops that wait; all others look through `eventually`. */
const HELPER = /^(until|eventually|waitFor)$/

/**
 * Limits of waiting lie below those of tests, so that a test can say what it waited for. A number that a waiter is given must
 * be less than the limit of the test it stands in, or of any test where it stands in none.
 */
export function waitProblems({ path, text }: TextFile): string[] {
  const problems: string[] = []
  const file = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true)
  const say = (node: ts.Node, what: string) => {
    problems.push(`${path}:${file.getLineAndCharacterOfPosition(node.getStart()).line + 1}  ${what}`)
  }
  const usual = path.endsWith('.full.test.ts') ? TEST_LIMITS.full : TEST_LIMITS.test
  const visit = (node: ts.Node, limit: number): void => {
    let inside = limit
    if (ts.isCallExpression(node)) {
      if (isTest(node)) inside = timeoutOf(node) ?? usual
      const given = WAITERS.has(nameOf(node.expression)) ? lastNumber(node) : undefined
      if (given !== undefined && given >= inside) say(node, `waits ${given} ms where a test may take ${inside}`)
    }
    if (
      ts.isParameter(node) &&
      !isFake(node) &&
      LIMITS.has(node.name.getText()) &&
      (numberOf(node.initializer) ?? 0) >= inside
    ) {
      say(node, `waits ${numberOf(node.initializer)} ms where a test may take ${inside}`)
    }
    if (ts.isFunctionDeclaration(node) && HELPER.test(node.name?.text ?? '')) {
      if (path.startsWith('test/') && !/\beventually\(/.test(node.body?.getText() ?? '')) {
        say(node, `${node.name!.text} has a loop of its own; use eventually of test/support/wait.ts`)
      }
    }
    ts.forEachChild(node, (child) => visit(child, inside))
  }
  visit(file, usual)
  return problems
}

/** On a fake clock, whose time is not the test's. */
function isFake({ parent }: ts.ParameterDeclaration): boolean {
  const owner = ts.isMethodDeclaration(parent) && ts.isClassDeclaration(parent.parent) ? parent.parent.name?.text : ''
  return owner === 'FakeClock' || parent.parameters.some(({ name }) => name.getText() === 'clock')
}

/** `test(…)`, `it.each(…)(…)`, `test.skipIf(…)(…)`. */
function isTest({ expression }: ts.CallExpression): boolean {
  let at: ts.Expression = expression
  while (ts.isCallExpression(at) || ts.isPropertyAccessExpression(at)) at = at.expression
  return ts.isIdentifier(at) && (at.text === 'test' || at.text === 'it')
}

/** Its own limit; infinite where that is no number written down, and so may be large enough. */
function timeoutOf(call: ts.CallExpression): number | undefined {
  for (const argument of call.arguments) {
    const own = argument === call.arguments.at(-1) ? numberOf(argument) : undefined
    if (own !== undefined && call.arguments.length > 1) return own
    if (ts.isIdentifier(argument)) return Number.POSITIVE_INFINITY
    if (!ts.isObjectLiteralExpression(argument)) continue
    for (const property of argument.properties) {
      if (property.name?.getText() !== 'timeout') continue
      return (
        (ts.isPropertyAssignment(property) ? numberOf(property.initializer) : undefined) ?? Number.POSITIVE_INFINITY
      )
    }
  }
  return undefined
}

function nameOf(expression: ts.Expression): string {
  if (ts.isIdentifier(expression)) return expression.text
  if (!ts.isPropertyAccessExpression(expression)) return ''
  // The fake clock's time is not the test's.
  return /clock$/i.test(expression.expression.getText()) ? '' : expression.name.text
}

function lastNumber({ arguments: given }: ts.CallExpression): number | undefined {
  const last = given.at(-1)
  if (last === undefined) return undefined
  if (!ts.isObjectLiteralExpression(last)) return numberOf(last)
  for (const property of last.properties) {
    if (!ts.isPropertyAssignment(property) || !['limit', 'timeout'].includes(property.name.getText())) continue
    return numberOf(property.initializer)
  }
  return undefined
}

function numberOf(node: ts.Node | undefined): number | undefined {
  return node !== undefined && ts.isNumericLiteral(node) ? Number(node.text.replaceAll('_', '')) : undefined
}

export function waits(): Findings {
  const paths = ['test', 'src/testing'].flatMap(filesUnder).filter((path) => path.endsWith('.ts') && !isList(path))
  return { problems: readText(paths).flatMap(waitProblems) }
}

/** Mutations are texts, and the helper itself is no user of itself. */
function isList(path: string): boolean {
  return path.startsWith('test/mutations/') || /^test\/support\/wait\./.test(path)
}
