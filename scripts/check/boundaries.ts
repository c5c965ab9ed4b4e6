import { posix } from 'node:path'
import { type Import, importsOf } from './imports.ts'
import type { Findings } from './run.ts'
import { filesUnder, readText, type TextFile } from './tracked.ts'

/**
 * Which folder of src/ may import which. Arrows go down only; a folder may always import itself.
 * `types` are further folders from which only types may come: they are erased, so nothing is loaded.
 * Every folder inside brokers/ stands alone, and so does every store: none of them imports a sibling.
 */
const ports = ['outbox', 'store', 'router', 'flow', 'cloudevents', 'core']
const stores = ['postgres', 'redis', 'memory']
const arrows: Record<string, { imports: string[]; types?: string[] }> = {
  // the people's side: speaks to ports, never to a driver
  cli: { imports: ['dashboard', 'observability', 'settings', 'saga', 'projection', ...ports] },
  dashboard: { imports: ['observability', 'saga', 'projection', ...ports] },
  // the crash matrix of sagas runs in memory
  testing: { imports: ['saga', 'projection', 'memory', ...ports] },
  // what `import … from 'waybill'` gives: backends have subpaths of their own
  'index.ts': { imports: ports },
  'adapter.ts': { imports: ports },
  'pipes.ts': { imports: ['flow'] },
  // subscribes to the table of telemetry events in core; of the rest it needs names and shapes only
  observability: { imports: ['core'], types: ['saga', 'projection', ...stores, 'brokers', 'drivers', ...ports] },
  // options for workers, from an environment; knows their names only
  settings: { imports: ['core'] },
  saga: { imports: [...ports, 'drivers'] },
  projection: { imports: [...ports, 'drivers'] },
  // a store implements their ports
  postgres: { imports: [...ports, 'drivers'], types: ['saga', 'projection'] },
  redis: { imports: [...ports, 'drivers'], types: ['saga', 'projection'] },
  memory: { imports: [...ports, 'drivers'], types: ['saga', 'projection'] },
  brokers: { imports: ['flow', 'cloudevents', 'core', 'drivers'] },
  outbox: { imports: ['store', 'router', 'flow', 'core', 'drivers'] },
  // what a store owes; the ports that only relays, sagas and projections use are named as types
  store: { imports: ['router', 'flow', 'core', 'drivers'], types: ['outbox', 'saga', 'projection'] },
  router: { imports: ['flow', 'core'] },
  flow: { imports: ['core'] },
  cloudevents: { imports: ['core'] },
  drivers: { imports: ['core'] },
  core: { imports: [] },
}

/** The one place that picks a backend by its name: it may load any store or broker, lazily. */
const loader = 'cli/load'
const loadable = [...stores, 'brokers']

/** core/ runs wherever JavaScript does but for these built-ins, each for a reason. */
const coreBuiltins: Record<string, string> = {
  'node:diagnostics_channel': 'telemetry that costs nothing without a subscriber',
  'node:crypto': 'random ids, and name-based ids for foreign messages',
  'node:util': 'whether something that was thrown is a Proxy, or a promise is one of the language',
  'node:async_hooks': 'the ambient transaction (AsyncLocalStorage)',
  'node:events': 'that a signal which many listen to is not reported as a leak (setMaxListeners)',
}

/**
 * Which npm package may be imported from where in src/ (a folder or a file without its extension), and even there
 * only as a type or lazily: whoever uses one backend must not need the drivers of the others.
 * For example: `pg: ['drivers/pg', 'cli/load']`. At present there are none.
 */
const packages: Record<string, string[]> = {}

/** Where `import(expression)` may stand: what is loaded there, no table can hold. */
const computed = [loader]

export interface Violation {
  path: string
  line: number
  problem: string
}

/** The imports among these files that go against the tables above. */
export function findViolations(files: TextFile[]): Violation[] {
  return files.flatMap(({ path, text }) => {
    const judge = path.startsWith('src/') ? judgeSource : /^(bench|examples)\//.test(path) ? judgeUser : undefined
    if (!judge) return []
    return importsOf(path, text).flatMap((found) => {
      const problem = judge(path, found)
      return problem ? [{ path, line: found.line, problem }] : []
    })
  })
}

export function boundaries(): Findings {
  const sources = ['src', 'bench', 'examples'].flatMap(filesUnder).filter((path) => /\.[cm]?tsx?$/.test(path))
  const violations = findViolations(readText(sources))
  return { problems: violations.map(({ path, line, problem }) => `${path}:${line}  ${problem}`) }
}

function judgeSource(path: string, { specifier, kind }: Import): string | undefined {
  const from = path.slice('src/'.length)
  if (!arrows[layerOf(from)]) return `src/${layerOf(from)} is not in the table of layers (scripts/check/boundaries.ts)`
  if (specifier === undefined) {
    return isWithin(from, computed) ? undefined : 'imports a computed name, which no check can follow'
  }
  if (specifier.startsWith('.')) {
    const to = posix.relative('src', posix.join(posix.dirname(path), specifier))
    if (to.startsWith('..')) return `imports ${specifier}, which is outside src/ and not in the package`
    return judgeArrow(from, to, kind)
  }
  if (specifier.startsWith('node:')) {
    if (layerOf(from) !== 'core' || coreBuiltins[specifier]) return undefined
    return `core/ imports ${specifier}; of the built-ins only ${Object.keys(coreBuiltins).join(', ')} are allowed there`
  }
  return judgePackage(from, packageOf(specifier), kind)
}

function judgeArrow(from: string, to: string, kind: Import['kind']): string | undefined {
  const [source, target] = [layerOf(from), layerOf(to)]
  if (source === target) {
    if (source !== 'brokers' || brokerOf(from) === brokerOf(to)) return undefined
    return `${brokerOf(from)} imports ${brokerOf(to)}: a broker never imports another`
  }
  const allowed = arrows[source]!
  if (allowed.imports.includes(target)) return undefined
  if (allowed.types?.includes(target)) {
    return kind === 'type' ? undefined : `${source} may import only types from ${target} (import type)`
  }
  if (isWithin(from, [loader]) && loadable.includes(target) && kind !== 'value') return undefined
  return `${source} may not import ${target} (allowed: ${allowed.imports.join(', ') || 'nothing'})`
}

function judgePackage(from: string, name: string, kind: Import['kind']): string | undefined {
  if (name === 'waybill') return 'imports the package by its own name; inside src/ imports are relative'
  const places = packages[name] ?? []
  if (!isWithin(from, places)) {
    return `imports the package ${name}, which is allowed ${places.length ? `only in ${places.join(', ')}` : 'nowhere in src/'}`
  }
  return kind === 'value'
    ? `imports ${name} at load time; import its types, or import() it when it is needed`
    : undefined
}

/** bench/ and examples/ stand where a user stands. */
function judgeUser(path: string, { specifier }: Import): string | undefined {
  if (!specifier?.startsWith('.')) return undefined
  const to = posix.join(posix.dirname(path), specifier)
  return /^(src|dist)(\/|$)/.test(to) ? `imports ${specifier}; use the public name (waybill, waybill/…)` : undefined
}

function layerOf(path: string): string {
  return path.split('/')[0]!
}

function brokerOf(path: string): string {
  return path.split('/').slice(0, 2).join('/')
}

function packageOf(specifier: string): string {
  return specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/')
}

function isWithin(path: string, places: string[]): boolean {
  const bare = path.replace(/\.[cm]?tsx?$/, '')
  return places.some((place) => bare === place || bare.startsWith(`${place}/`))
}
