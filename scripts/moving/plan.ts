import { posix } from 'node:path'
import ts from 'typescript'
import type { TextFile } from '../check/tracked.ts'

export interface Plan {
  /** What was asked for, and the tests that go along. */
  readonly moves: ReadonlyMap<string, string>
  /** Every file whose text changes, under its new path. */
  readonly changed: readonly TextFile[]
  readonly problems: readonly string[]
}

/** What must change when files move. Nothing is read or written here, so a test needs no disk. */
export function plan(files: readonly TextFile[], wanted: ReadonlyMap<string, string>): Plan {
  const known = new Set(files.map(({ path }) => path))
  const moves = new Map([...wanted].flatMap(([from, to]) => withTest(from, to, known)))
  const problems = [...moves].flatMap(([from, to]) => {
    if (!known.has(from)) return [`${from} does not exist`]
    return known.has(to) && !moves.has(to) ? [`${to} exists already`] : []
  })
  if (problems.length > 0) return { moves, changed: [], problems }
  const changed: TextFile[] = []
  for (const { path, text } of files) {
    const at = moves.get(path) ?? path
    const rewritten = rewrite(path, at, text, moves, known)
    if (rewritten !== text) changed.push({ path: at, text: rewritten })
  }
  return { moves, changed, problems }
}

/** A test is found by the path of what it tests, so it moves too. */
function withTest(from: string, to: string, known: ReadonlySet<string>): [string, string][] {
  const testOf = (path: string) => path.replace(/^src\//, 'test/').replace(/\.ts$/, '.test.ts')
  const pair: [string, string] = [from, to]
  if (!/^src\/.*\.ts$/.test(from) || !/^src\/.*\.ts$/.test(to) || !known.has(testOf(from))) return [pair]
  return [pair, [testOf(from), testOf(to)]]
}

function rewrite(
  path: string,
  at: string,
  text: string,
  moves: ReadonlyMap<string, string>,
  known: ReadonlySet<string>,
): string {
  if (/\.[cm]?ts$/.test(path)) return mentions(imports(path, at, text, moves), moves, known)
  if (path.endsWith('.md')) return mentions(links(path, at, text, moves), moves, known)
  return /\.(sql|lua|json|yml)$/.test(path) || path.startsWith('.ci/') ? mentions(text, moves, known) : text
}

/** Relative imports, and every other literal that is the relative path of a file (`new URL(…)`). */
function imports(path: string, at: string, text: string, moves: ReadonlyMap<string, string>): string {
  const file = ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true)
  const edits: { start: number; end: number; text: string }[] = []
  const visit = (node: ts.Node): void => {
    if (ts.isStringLiteralLike(node) && /^\.\.?\/.*\.\w+$/.test(node.text)) {
      const target = posix.join(posix.dirname(path), node.text)
      const moved = relative(at, moves.get(target) ?? target)
      if (moved !== node.text) edits.push({ start: node.getStart(file) + 1, end: node.getEnd() - 1, text: moved })
    }
    ts.forEachChild(node, visit)
  }
  visit(file)
  let result = text
  for (const edit of edits.reverse()) result = result.slice(0, edit.start) + edit.text + result.slice(edit.end)
  return result
}

function relative(from: string, to: string): string {
  const path = posix.relative(posix.dirname(from), to)
  return path.startsWith('.') ? path : `./${path}`
}

/** `[label](target#anchor)`: the target, and a label that is the file's name. */
function links(path: string, at: string, text: string, moves: ReadonlyMap<string, string>): string {
  return text.replace(
    /\[([^\]\n]*)\]\(([^)\s#]+)(#[^)\s]*)?\)/g,
    (whole, label: string, target: string, anchor = '') => {
      if (/^[a-z]+:/.test(target)) return whole
      const from = posix.join(posix.dirname(path), target)
      const to = moves.get(from)
      if (to === undefined && at === path) return whole
      const link = posix.relative(posix.dirname(at), to ?? from)
      const named = to === undefined ? label : label.replace(posix.basename(from), () => posix.basename(to))
      return `[${named}](${link}${anchor})`
    },
  )
}

/** Paths from the repository's folder, and bare names that only one file has. */
function mentions(text: string, moves: ReadonlyMap<string, string>, known: ReadonlySet<string>): string {
  const names = [...known].map((path) => posix.basename(path))
  let result = text
  for (const [from, to] of moves) {
    // The readiness map names a test by its path alone: by('core/acking').
    if (from.startsWith('test/')) result = result.replaceAll(`by('${bare(from)}')`, `by('${bare(to)}')`)
    result = result.replace(word(from), (_, before: string) => before + to)
    const name = posix.basename(from)
    if (name === posix.basename(to) || names.filter((other) => other === name).length > 1) continue
    result = result.replace(word(name), (_, before: string) => before + posix.basename(to))
  }
  return result
}

const bare = (test: string): string => test.replace(/^test\//, '').replace(/\.test\.ts$/, '')

/** The text as a whole word: not the end of a longer path or name. */
function word(text: string): RegExp {
  return new RegExp(`(^|[^\\w./-])${text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}(?![\\w/-]|\\.\\w)`, 'gm')
}
