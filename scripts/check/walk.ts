import { existsSync } from 'node:fs'
import { join, posix } from 'node:path'
import { importsOf } from './imports.ts'
import { type Findings, root } from './run.ts'
import { readText, type TextFile } from './tracked.ts'

/**
 * The files one opens to follow one event: enqueued in a PostgreSQL transaction, published by a relay to RabbitMQ,
 * handled in another transaction, settled. Nothing fails, and the handler returns nothing. Helpers do not count: one passes
 * through them without learning what becomes of the event (HELPERS). docs/internals.md describes the same way in words.
 */
export const WALK: readonly string[] = [
  ...of('core', 'event', 'message', 'data'),
  ...of('cloudevents', 'binary'),
  ...of('store', 'enqueue', 'unit-of-work', 'middleware'),
  ...of('outbox', 'relay', 'assignment'),
  ...of('postgres', 'store', 'outbox', 'row', 'inbox'),
  ...of('postgres', 'leadership', 'owner', 'relay-connections', 'scan', 'places', 'low-water', 'wake'),
  ...['enqueue-one', 'scan-ready', 'settle-published', 'inbox-receive'].map((name) => `src/postgres/sql/${name}.sql`),
  ...of('drivers/sql', 'sql-of', 'pg', 'transaction'),
  ...of('drivers', 'amqp'),
  ...of('flow', 'worker', 'flow', 'dispatcher', 'calls', 'unsettled', 'keyed-queue', 'window', 'settler'),
  ...of('flow', 'source', 'publisher'),
  ...of('brokers/rabbitmq', 'broker', 'publisher', 'sender', 'encoding', 'source', 'session'),
  ...of('router', 'consumer', 'router', 'middleware'),
]

/** Passed through on the way, and named here so that nothing hides: waiting, time limits, names, reports. */
const HELPERS: readonly string[] = [
  ...of('core', 'waiting', 'deadlines', 'fifo'),
  ...of('flow', 'time-limit', 'handled'),
  ...of('postgres', 'columns', 'names', 'statements'),
  ...of('brokers/rabbitmq', 'setup'),
]

/** What users import, or what a driver's recogniser picks: nothing on the way names these. */
const ENTRIES = ['postgres/store', 'store/middleware', 'outbox/relay', 'brokers/rabbitmq/broker', 'drivers/sql/pg'].map(
  (name) => `src/${name}.ts`,
)

/** More than so many is a way nobody walks. */
export const MOST = 47

export function walk(): Findings {
  const missing = [...WALK, ...HELPERS]
    .filter((path) => !existsSync(join(root, path)))
    .map((path) => `${path} does not exist`)
  const problems = missing.length > 0 ? missing : apart(readText([...WALK]))
  if (WALK.length > MOST) problems.push(`${WALK.length} files are on one event's way; at most ${MOST} may be`)
  return { problems, notes: [`${WALK.length} files, ${WALK.length + HELPERS.length} with helpers`] }
}

/** Files that no other on the way names: whoever follows the imports would never come to them. */
export function apart(files: readonly TextFile[]): string[] {
  const named = new Set(files.flatMap(({ path, text }) => namedBy(path, text)))
  return files
    .filter(({ path }) => !named.has(path) && !ENTRIES.includes(path))
    .map(({ path }) => `${path} is on the way, but no other file on it imports it`)
}

function namedBy(path: string, text: string): string[] {
  if (!path.endsWith('.ts')) return []
  const folder = posix.dirname(path)
  const imported = importsOf(path, text).flatMap(({ specifier }) => {
    if (!specifier?.startsWith('.')) return []
    const target = posix.join(folder, specifier)
    // Through a folder's index every file of the folder is within reach.
    return target.endsWith('/index.ts')
      ? WALK.filter((other) => posix.dirname(other) === posix.dirname(target))
      : [target]
  })
  const statements = [...text.matchAll(/sql(?:\['|\.)([\w-]+)/g)].map(([, name]) => `${folder}/sql/${name}.sql`)
  const quoted = [...text.matchAll(/'([\w-]+)'/g)].map(([, name]) => `${folder}/sql/${name}.sql`)
  return [...imported, ...statements, ...quoted]
}

function of(folder: string, ...names: string[]): string[] {
  return names.map((name) => `src/${folder}/${name}.ts`)
}
