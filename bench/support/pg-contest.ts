import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { Child, contestantNode } from './pg-child.ts'
import { cpuOf } from './pg-cpu.ts'
import { Databases } from './pg-databases.ts'
import type { Drained } from './pg-drain.ts'
import { placed } from './pg-events.ts'
import { installPeers, type Peer, peerFile } from './pg-peers.ts'
import type { RelayChildOptions } from './pg-relay-child.ts'
import { type BenchServer, startServer } from './pg-server.ts'

/** Somebody who empties an outbox or a queue. */
export interface Contestant {
  readonly name: string
  readonly by: 'relay' | 'bare' | Peer
  readonly relay?: RelayChildOptions['relay']
  readonly warmUp?: number
  readonly metrics?: boolean
  readonly tracing?: boolean
  readonly events: number
  /** How many of them it does before the clock begins. */
  readonly cold?: number
  /** How it was set up, for people. */
  readonly how: string
}

export interface Taken extends Drained {
  readonly perSecond: number
  /** CPU microseconds per event of Node and of the server. */
  readonly nodeUs: number
  readonly serverUs: number
}

/** What else goes on while it works; returns how to end that. */
export type Meanwhile = (database: string) => Promise<() => Promise<void>>

/** A server, the peers and the databases of a benchmark. */
export class Contest {
  readonly server: BenchServer
  readonly databases: Databases
  readonly versions: Readonly<Record<string, string>>
  readonly #node: string

  private constructor(server: BenchServer, node: string, versions: Record<string, string>) {
    this.server = server
    this.databases = new Databases(server)
    this.versions = versions
    this.#node = node
  }

  static async open(options: { peers: boolean }): Promise<Contest> {
    const node = await contestantNode('relay', say)
    const { bullmq: _, ...peers } = options.peers ? await installPeers(say) : ({} as Record<string, string>)
    const server = await startServer(say)
    return new Contest(server, node.path, { postgresql: server.version, 'contestants on node': node.version, ...peers })
  }

  close(): Promise<void> {
    return this.server.close()
  }

  child(file: URL, options: object, flags?: readonly string[]): Child {
    return new Child(this.#node, file, options, flags)
  }

  /** One round: a fresh copy of its database, a fresh process. */
  async round(contestant: Contestant, meanwhile?: Meanwhile): Promise<Taken> {
    const template = await this.#filled(contestant)
    return this.databases.within(template, (database) => this.drain(contestant, database, meanwhile))
  }

  async drain(contestant: Contestant, database: string, meanwhile?: Meanwhile): Promise<Taken> {
    const { by, events, cold, relay = {}, warmUp, metrics, tracing } = contestant
    const url = this.server.url(database)
    const child = this.child(fileOf(by), { url, events, cold, relay, warmUp, metrics, tracing, mode: 'drain' })
    await child.next()
    const end = await meanwhile?.(database)
    const before = cpuOf(this.server.pid) ?? Number.NaN
    child.send('go')
    const drained = await child.next<Drained>()
    // Server processes that have just ended are counted with their parent, a moment later.
    await sleep(100)
    const server = (cpuOf(this.server.pid) ?? Number.NaN) - before
    await end?.()
    await child.end()
    await this.#check(contestant, database, meanwhile === undefined)
    return {
      ...drained,
      perSecond: (drained.events / drained.ms) * 1000,
      nodeUs: drained.cpu / drained.events,
      serverUs: server / events,
    }
  }

  /** A copy of a database in which `events` are pending for this contestant. */
  async #filled({ by, events }: Contestant): Promise<string> {
    const product = by === 'bare' || by === 'relay' ? 'waybill' : by
    const template = `${product}_${events}`
    await this.databases.template(template, async (url) => {
      say(`${template}: writing ${events} events`)
      if (product === 'waybill') return fill(url, events)
      const child = this.child(peerFile(product), { url, events, mode: 'seed' })
      await child.end()
    })
    return template
  }

  /** Equal work: everything was done, and is known to be done. */
  async #check({ name, by }: Contestant, database: string, all: boolean): Promise<void> {
    const { rows } = await this.server.sql(database, LEFT[by])
    if (all && rows[0].left !== 0) throw new Error(`${name} left ${rows[0].left} events behind`)
  }
}

const LEFT: Record<Contestant['by'], string> = {
  relay: `SELECT count(*)::int AS left FROM outbox WHERE state <> 'published'`,
  bare: 'SELECT count(*)::int AS left FROM outbox',
  'graphile-worker': 'SELECT count(*)::int AS left FROM graphile_worker.jobs',
  'pg-boss': `SELECT count(*)::int AS left FROM pgboss.job WHERE name = 'relay' AND state < 'completed'`,
  'pg-transactional-outbox': 'SELECT count(*)::int AS left FROM outbox WHERE processed_at IS NULL',
}

function fileOf(by: Contestant['by']): URL {
  if (by === 'relay' || by === 'bare') return new URL(`./pg-${by}-child.ts`, import.meta.url)
  return peerFile(by)
}

/** Through the product's own enqueue, a thousand at a time. */
export async function fill(url: string, events: number, table = 'outbox'): Promise<void> {
  const pool = new pg.Pool({ connectionString: url, max: 4 })
  const db = postgres({ pool, outbox: { table } })
  await db.migrate()
  for (let next = 0; next < events; next += 1000) {
    const batch = Array.from({ length: Math.min(1000, events - next) }, (_, i) => placed(next + i))
    await db.withTransaction((tx) => db.outbox.enqueue(tx, batch))
  }
  await pool.end()
}

/** Progress goes to stderr: the last line of stdout is for machines. */
export function say(text: string): void {
  console.error(`· ${text}`)
}
