/**
 * The servers of the run, for tests. `service()` is shared with all other test files: a test that stops or crashes its
 * server takes a private one from `privatePostgres()`.
 */
import { afterAll, describe } from 'vitest'
import { postgres, postgres15 } from '../../scripts/services/kinds/postgres.ts'
import { startPrivate } from '../../scripts/services/provision.ts'
import { openRun, type Run } from '../../scripts/services/run.ts'
import * as control from '../../scripts/services/server.ts'
import { currentHandover } from '../../scripts/services/state.ts'
import type { Entry, Server, StopMode } from '../../scripts/services/types.ts'
import * as databases from './databases.ts'

export interface Service {
  name: string
  url: string
  /** null when the server is not a process of this machine's making. */
  readonly pid: number | null
  stop(mode?: StopMode): Promise<void>
  /** Returns when the server is ready to work. */
  start(): Promise<void>
  restart(mode?: StopMode): Promise<void>
}

const handover = await currentHandover()

/** Was this server left out of the run by `--without`? */
export function without(name: string): boolean {
  return handover?.without.includes(name) ?? false
}

/** A suite that needs servers. Where one was left out its tests are skipped, hooks too, and the run's end says why. */
export function describeWith(names: string[], title: string, body: () => void): void {
  const missing = names.filter(without)
  if (missing.length) describe.skip(`${title} [without ${missing.join(', ')}]`, body)
  else describe(title, body)
}

/** One suite on each of several servers, whose name takes the place of `%s`. As `describeWith` otherwise. */
export function describeOn<Name extends string>(
  names: readonly Name[],
  title: string,
  body: (name: Name) => void,
): void {
  for (const name of names) describeWith([name], title.replace('%s', name), () => body(name))
}

export function service(name: string): Service {
  const server = handover?.servers.find((candidate) => candidate.name === name)
  if (server) return handle(server)
  const why = handover ? 'is not part of this run; add it to scripts/services/needed.ts' : 'is not running'
  throw new Error(`${name} ${why}; start tests with \`npm test\`, or servers with \`npm run services -- up ${name}\``)
}

function handle(server: Server): Service {
  return {
    name: server.name,
    url: server.url,
    get pid() {
      return control.pid(server)
    },
    stop: (mode) => control.stop(server, mode),
    start: () => control.start(server),
    async restart(mode) {
      await control.stop(server, mode)
      await control.start(server)
    },
  }
}

let ownRun: Promise<Run> | undefined
const privates: Server[] = []

/** The run of `npm test`, or, under a bare vitest, one of this process with its own watchdog. */
async function runDir(): Promise<string> {
  if (process.env['WAYBILL_SERVICES']) return handover!.run
  ownRun ??= openRun()
  return (await ownRun).dir
}

export interface PrivateOptions {
  version?: 'postgres' | 'postgres15'
  /** Written to postgresql.conf, after the usual ones: `{ max_connections: '5' }`. */
  settings?: Record<string, string>
}

/** A PostgreSQL of one's own, to crash at will. Ended after the test file, and by the watchdog if that never comes. */
export async function privatePostgres(options: PrivateOptions = {}): Promise<Service & { end(): Promise<void> }> {
  return await privateServer(options.version === 'postgres15' ? postgres15 : postgres, options.settings)
}

/** The same of any kind the catalog knows; see test/support/redis-topologies.ts for several that work together. */
export async function privateServer(
  entry: Entry,
  settings: Record<string, string> = {},
): Promise<Service & { end(): Promise<void> }> {
  const server = await startPrivate(entry, { run: await runDir(), settings })
  privates.push(server)
  return Object.assign(handle(server), { end: () => control.stop(server, 'immediate') })
}

afterAll(async () => {
  await Promise.all(privates.map((server) => control.stop(server, 'immediate')))
  await (await ownRun)?.close()
})

export interface FreshDatabase {
  name: string
  url: string
  /** The same database on another way in: `through('pgbouncer')`. */
  through(name: string): string
  drop(): Promise<void>
}

/** An empty database on the shared server, or on the one given. */
export async function freshDatabase(on: string | Service = 'postgres'): Promise<FreshDatabase> {
  const server = typeof on === 'string' ? service(on) : on
  const { url } = server
  const name = await databases.make(url)
  if (typeof on === 'string') used.add(url)
  return {
    name,
    url: databases.at(url, name),
    through: (other) => databases.at(service(other).url, name),
    // A pooler may still have connections to it, and a private server ends with its test.
    drop: () =>
      typeof on === 'string' && on !== 'pgbouncer' ? databases.giveBack(url, name) : databases.drop(url, name),
  }
}

/** Shared servers on which this file has had databases. */
const used = new Set<string>()

afterAll(async () => {
  for (const url of used) await databases.dropSpare(url)
})
