/**
 * Finds or starts servers, side by side, in this order: a URL in the environment, a server that already listens (only
 * when asked), Docker Compose, binaries from npm or Debian. What cannot be had is named together with the way to get it.
 */
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { catalog, known } from './catalog.ts'
import { container, engineAnswers } from './docker.ts'
import { account, ownDir } from './files.ts'
import { freePort } from './ports.ts'
import { MARK } from './process.ts'
import { isReady } from './ready.ts'
import { start } from './server.ts'
import type { Entry, Launch, Server, Site } from './types.ts'

export interface Provision {
  /** The run's folder. */
  run: string
  say?: (text: string) => void
  /** Servers that run already, for those that stand in front of them. */
  running?: Server[]
}

/** Some of the servers could not be had; `started` are those that could, and run. */
export class ProvisionError extends Error {
  constructor(
    problems: { name: string; error: Error }[],
    readonly started: Server[],
  ) {
    const lines = problems.map(({ name, error }) => {
      return `${name}: ${error.message}\n  to get it: ${catalog[name]!.install}\n  to go without: --without ${name}`
    })
    super(`could not provision:\n${lines.join('\n')}`)
  }
}

export async function provision(names: string[], options: Provision): Promise<Server[]> {
  known(names)
  const say = options.say ?? (() => {})
  const running = options.running ?? []
  const begun = new Map(running.map((server) => [server.name, Promise.resolve(server)]))
  const bring = (name: string): Promise<Server> => {
    const promised = begun.get(name)
    if (promised) return promised
    const entry = catalog[name]!
    const promise = (async () => {
      const others = await Promise.all((entry.after ?? []).map(bring))
      const from = performance.now()
      const server = await obtain(entry, others, options.run, (text) => say(`${name}: ${text}`))
      const took = ((performance.now() - from) / 1000).toFixed(1)
      say(`${name}: ${server.version} ready at ${server.url} in ${took} s (${server.origin})`)
      return server
    })()
    begun.set(name, promise)
    return promise
  }
  await Promise.allSettled(names.map(bring))
  const results = await Promise.allSettled(begun.values())
  const started = results.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []))
  const problems = [...begun.keys()].flatMap((name, index) => {
    const result = results[index]!
    return result.status === 'rejected' ? [{ name, error: result.reason as Error }] : []
  })
  if (problems.length) throw new ProvisionError(problems, started)
  return started
}

async function obtain(entry: Entry, others: Server[], run: string, say: (text: string) => void): Promise<Server> {
  const { name, protocol } = entry
  const found = (url: string, origin: string): Server => {
    return { name, url, origin, version: '', protocol, control: { kind: 'found' } }
  }
  const named = process.env[entry.variable]
  if (named) {
    if (await isReady(named, protocol, 5_000)) return found(named, 'environment')
    throw new Error(`nothing responds at ${entry.variable}=${named}`)
  }
  // Only when asked: what listens on the default port may hold somebody's data, and tests create, drop and crash.
  if (process.env['WAYBILL_TEST_USE_RUNNING'] === '1' && (await isReady(entry.defaultUrl, protocol))) {
    return found(entry.defaultUrl, 'already running')
  }
  if (entry.container && (await engineAnswers())) {
    say('starting a container')
    const server = await container(entry, run)
    await start(server)
    return server
  }
  return await startPrivate(entry, { run, others, say, settings: entry.shared ?? {} })
}

export interface Private {
  run: string
  others?: Server[]
  say?: (text: string) => void
  /** Passed on to the entry; PostgreSQL takes settings. */
  settings?: Record<string, string>
}

/** A server of our own from binaries: private port, private directory, unprivileged user. */
export async function startPrivate(entry: Entry, options: Private): Promise<Server> {
  const { name, protocol } = entry
  const [owner, binaries] = await Promise.all([account(entry.accounts), entry.binaries(options.say ?? (() => {}))])
  const id = `${name}-${randomBytes(3).toString('hex')}`
  const dir = await ownDir(join(options.run, id), owner)
  const site: Site = {
    dir,
    account: owner,
    binaries,
    settings: options.settings ?? {},
    port: freePort,
    other: (wanted) => options.others!.find((server) => server.name === wanted)!,
    launch(role, parts): Launch {
      return {
        role,
        cwd: dir,
        account: owner,
        log: join(options.run, `${id}-${role}.log`),
        pidFile: join(options.run, 'pids', `${id}-${role}`),
        signals: { fast: 'SIGTERM', immediate: 'SIGKILL' },
        ...parts,
        env: {
          PATH: process.env['PATH'] ?? '',
          HOME: dir,
          TZ: 'UTC',
          ...binaries.env,
          ...parts.env,
          [MARK]: options.run,
        },
      }
    },
  }
  const { port, launches, dataDir } = await entry.prepare(site)
  const url = entry.url(port)
  const { origin, version } = binaries
  const server: Server = { name, url, origin, version, protocol, control: { kind: 'process', launches, dataDir } }
  await start(server)
  return server
}
