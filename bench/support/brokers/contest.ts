import { catalog } from '../../../scripts/services/catalog.ts'
import { freePort } from '../../../scripts/services/ports.ts'
import { startPrivate } from '../../../scripts/services/provision.ts'
import { openRun } from '../../../scripts/services/run.ts'
import { pid } from '../../../scripts/services/server.ts'
import { pairedRatio, type Summary, summary } from '../measure.ts'
import { Child, contestantNode } from '../pg-child.ts'
import { fill, say } from '../pg-contest.ts'
import { cpuOf } from '../pg-cpu.ts'
import type { Drained } from '../pg-drain.ts'
import { type BenchServer, startServer } from '../pg-server.ts'
import { type Row, round } from '../report.ts'
import type { BrokerBench, Role, Stage } from './broker.ts'
import type { ConsumeOptions } from './consume-child.ts'
import type { PublishOptions } from './publish-child.ts'

/** One who takes part in the rounds of a broker. */
export interface Side {
  readonly name: string
  /** Whether a goal is about it: then it gets more rounds. */
  readonly goal?: true
  readonly how: string
  readonly options: Omit<PublishOptions, 'broker' | 'url' | 'database'> | Omit<ConsumeOptions, 'broker' | 'url'>
}

export interface Line {
  readonly side: Side
  readonly taken: Drained[]
  /** CPU microseconds per event of the broker's server. */
  readonly serverUs: number[]
}

export interface RoundsOptions {
  readonly events: number
  readonly rounds: number
  /** After them so many more, of those with a goal. */
  readonly more: number
  readonly warmUp: number
}

interface RoundParts {
  readonly role: Role
  readonly stage: Stage
  readonly child: Child
  readonly name: string
  readonly events: number
  /** Of the broker's server, in microseconds. */
  readonly cpu: () => number
  readonly side: Side
}

/** The outbox that relays read, and the Node that contestants run on. */
export class BrokerContest {
  readonly #node: { version: string; path: string }
  readonly #postgres: BenchServer
  #filled = 0
  #rounds = 0

  private constructor(node: { version: string; path: string }, server: BenchServer) {
    this.#node = node
    this.#postgres = server
  }

  static async open(): Promise<BrokerContest> {
    const node = await contestantNode('brokers', say)
    return new BrokerContest(node, await startServer(say))
  }

  get versions(): Record<string, string> {
    return { postgresql: this.#postgres.version, 'contestants on node': this.#node.version }
  }

  /** Starts the broker for as long as `work` takes. */
  async withBroker<T>(broker: BrokerBench, work: (url: string, server: number | null) => Promise<T>) {
    if (broker.server === undefined) {
      return { answer: await work(`http://127.0.0.1:${await freePort()}/`, null), version: '' }
    }
    const run = await openRun()
    try {
      const server = await startPrivate(catalog[broker.server]!, { run: run.dir, say })
      return { answer: await work(server.url, pid(server)), version: server.version }
    } finally {
      await run.close()
    }
  }

  /** Rounds of all sides by turns, each in a process that stays; the first ones of each warm up and do not count. */
  async rounds(
    broker: BrokerBench,
    role: Role,
    sides: readonly Side[],
    { url, server, events, rounds, more, warmUp }: RoundsOptions & { url: string; server: number | null },
  ): Promise<Line[]> {
    const file = new URL(`./${role}-child.ts`, import.meta.url)
    const database = this.#postgres.url('bench')
    if (role === 'publish') await this.#prepareOutbox(events)
    const stage = await broker.stage(url, role)
    const lines = sides.map((side): Line => ({ side, taken: [], serverUs: [] }))
    const children: Child[] = []
    try {
      for (const { options } of sides) {
        const child = new Child(this.#node.path, file, { ...options, broker: broker.name, url, database })
        children.push(child)
        await child.next()
      }
      for (let i = -warmUp; i < rounds + more; i++) {
        for (let j = 0; j < lines.length; j++) {
          const at = (i + warmUp + j) % lines.length
          const { side, taken, serverUs } = lines[at]!
          if (i >= rounds && !side.goal) continue
          const name = `r${++this.#rounds}`
          const cpu = () => cpuOf(server) ?? Number.NaN
          const one = await this.#round({ role, stage, child: children[at]!, name, events, cpu, side })
          say(`${broker.name} ${role} ${i + 1}/${rounds + more} ${side.name}: ${Math.round(perSecond(one.drained))}/s`)
          if (i < 0) continue
          taken.push(one.drained)
          serverUs.push(one.server / events)
        }
      }
    } finally {
      await Promise.all(children.map((child) => child.end()))
      await stage.close()
    }
    return lines
  }

  async #round(one: RoundParts): Promise<{ drained: Drained; server: number }> {
    const { role, stage, child, name, events, cpu } = one
    if (role === 'publish') {
      await stage.empty()
      await this.#refill()
    } else await stage.fill(name, events)
    const began = cpu()
    child.send(JSON.stringify({ name, events }))
    const [drained] = await Promise.all([child.next<Drained>(), role === 'consume' ? stage.load?.() : undefined])
    const server = cpu() - began
    await this.#check(one)
    return { drained, server }
  }

  /** Equal work: all of it was done, and is known to be done. */
  async #check({ role, stage, name, events, side }: RoundParts): Promise<void> {
    const who = side.name
    if (role === 'consume') {
      const left = await stage.left(name)
      if (left !== 0) throw new Error(`${who} left ${left} messages behind`)
      return
    }
    const count = await stage.count()
    if (count !== events) throw new Error(`${who} published ${count} of ${events}`)
    if ((side.options as PublishOptions).side === 'memory') return
    const { rows } = await this.#postgres.sql('bench', 'SELECT count(*)::int AS left FROM outbox')
    if (rows[0].left !== 0) throw new Error(`${who} left ${rows[0].left} events behind`)
  }

  async #prepareOutbox(events: number): Promise<void> {
    if (this.#filled === events) return
    const { sql } = this.#postgres
    await sql('postgres', 'DROP DATABASE IF EXISTS bench WITH (FORCE)')
    await sql('postgres', 'CREATE DATABASE bench')
    say(`writing ${events} events`)
    await fill(this.#postgres.url('bench'), events)
    await sql('bench', 'CREATE TABLE seed AS SELECT * FROM outbox ORDER BY sequence')
    this.#filled = events
  }

  /** The same events again, under new ids: a broker may remember the old ones. */
  async #refill(): Promise<void> {
    const { sql } = this.#postgres
    const columns = 'topic, key, source, event_type, event_version, attributes, payload'
    await sql('bench', 'TRUNCATE outbox')
    await sql(
      'bench',
      `INSERT INTO outbox (event_id, ${columns}) SELECT gen_random_uuid(), ${columns} FROM seed ORDER BY sequence`,
    )
    await sql('bench', 'VACUUM (ANALYZE) outbox')
    await sql('bench', 'CHECKPOINT')
  }

  close(): Promise<void> {
    return this.#postgres.close()
  }
}

const perSecond = ({ events, ms }: Drained) => (events / ms) * 1000

/** Round by round, as far as both took part. */
export function ratioOf(lines: readonly Line[], ours: string, theirs: string): Summary {
  const rates = (name: string) => lines.find(({ side }) => side.name === name)!.taken.map(perSecond)
  return pairedRatio(rates(ours), rates(theirs))
}

export function rowOf(broker: string, role: Role, lines: readonly Line[], { side, taken, serverUs }: Line): Row {
  const rate = summary(taken.map(perSecond))
  const median = (values: readonly number[]) => round(summary(values).median)
  const ratio = ratioOf(lines, side.name, 'bare')
  return {
    broker,
    what: role,
    contestant: side.name,
    'per s': Math.round(rate.median),
    'half between': `${Math.round(rate.low)}–${Math.round(rate.high)}`,
    '× bare': round(ratio.median),
    spread: `${round(ratio.low)}–${round(ratio.high)}`,
    'node µs': median(taken.map(({ cpu, events }) => cpu / events)),
    'server µs': serverUs.some(Number.isNaN) ? '' : median(serverUs),
    rounds: taken.length,
    how: side.how,
  }
}
