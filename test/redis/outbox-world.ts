import { type Message, WaybillError } from '../../src/core/index.ts'
import { type OutboxReader, Relay, type RelayOptions } from '../../src/outbox/index.ts'
import { type RedisOutbox, redisOutbox } from '../../src/redis/index.ts'
import { type RunningScript, runScript, type ScriptOptions } from '../../src/testing/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { Journal, journalPublisher, type Line } from '../postgres/faults/journal.ts'
import { bundled } from '../support/bundled.ts'
import { type OutboxJob, write } from './outbox-child.ts'
import { ioredis, reader, storeOf, until } from './support.ts'

export type Child = RunningScript & { readonly name: string }

export interface Expected {
  /** Relays that were suspended: what they had out counts as ended when another begins with it. */
  readonly zombies?: readonly string[]
  /** How many may arrive more than once. */
  readonly duplicates?: number
  readonly dead?: readonly string[]
}

/** An outbox, relays here and in other processes, and a journal of all that went out. */
export function world(url: string, shards = 1) {
  const stores = Array.from({ length: shards }, () => storeOf(ioredis(url)))
  const outbox = redisOutbox({ on: stores })
  const journal = new Journal()
  const children: RunningScript[] = []
  const relays: Relay[] = []
  const sent: Message[] = []
  let made = 0
  let numbers = 0
  const it = {
    url,
    stores,
    outbox,
    journal,
    sent,
    base: `{${stores[0]!.tag}}:outbox`,
    raw: reader(url),
    relay(options: Partial<RelayOptions> = {}, from: RedisOutbox = outbox, delay = 0): Relay {
      const name = options.name ?? `relay ${++made}`
      const to = journalPublisher(journal, { relay: name, delay })
      const poll = { poll: '20ms', maxPoll: '50ms' } as const
      const relay = new Relay({ from: from as OutboxReader, to, ...poll, ...options, name })
      relays.push(relay)
      return relay
    },
    child(job: Partial<OutboxJob> = {}, options: Partial<ScriptOptions> = {}): Child {
      const name = job.name ?? `child ${++made}`
      const tags = stores.map(({ tag }) => tag)
      const full: OutboxJob = { role: 'relay', url, tags, journal: journal.path, ...job, name }
      const script = bundled(new URL('./outbox-child.ts', import.meta.url))
      const child = runScript({ script, timeout: 600_000, ...options, env: { JOB: JSON.stringify(full) } })
      children.push(child)
      child.finished.then(
        () => journal.write({ what: 'died', relay: name }),
        () => {},
      )
      return Object.assign(child, { name })
    },
    /** Commits so many events with their lines in the ledger, keyed in turn, ten in a unit of work. */
    async fill(count: number, keys = 0, on: RedisOutbox = outbox): Promise<Message[]> {
      const all: Message[] = []
      while (all.length < count) {
        const key = keys === 0 ? {} : { key: `key ${++made % keys}` }
        const events = Array.from({ length: Math.min(10, count - all.length) }, () => sample(++numbers, key))
        await write(key.key === undefined ? stores[0]! : on.storeOf(key.key), on, events)
        all.push(...events)
      }
      sent.push(...all)
      return all
    },
    async pending(): Promise<number> {
      const { states } = await outbox.admin.stats()
      const { ready, scheduled, retrying, leased, held } = states
      return [ready, scheduled, retrying, leased, held].reduce((sum, { count }) => sum + count, 0)
    },
    async settled(limit = 60_000): Promise<void> {
      await until('nothing is pending', async () => (await it.pending()) === 0, limit)
    },
    /** What is not as it must be, in words. */
    async problems(expected: Expected = {}): Promise<string[]> {
      const ledger = (await Promise.all(stores.map((store) => it.raw.smembers(store.key('ledger'))))).flat()
      const found = [...check(journal.read(), ledger, expected)]
      // What has become of each tells where to look.
      const eventIds = found.filter((text) => text.endsWith('is lost')).map((text) => text.split(' ')[0]!)
      if (eventIds.length === 0) return found
      const states = new Map((await outbox.admin.list({ eventIds })).map((entry) => [entry.eventId, entry]))
      return found.map((text) => {
        const entry = states.get(text.split(' ')[0]!)
        return `${text}: ${entry === undefined ? 'not in the outbox' : `${entry.state}, ${entry.attempts} attempts, ${entry.lastError}`}`
      })
    },
    async end(): Promise<void> {
      for (const child of children) child.kill('SIGKILL')
      await Promise.all(children.map((child) => child.finished.catch(() => {})))
      await Promise.all(relays.map((relay) => relay.stop().catch(() => {})))
      journal.remove()
    },
  }
  return it
}

export type World = ReturnType<typeof world>

function* check(lines: readonly Line[], ledger: readonly string[], expected: Expected): Generator<string> {
  const { zombies = [], duplicates = 0, dead = [] } = expected
  const flying = new Map<string, string>()
  const arrived = new Map<string, number>()
  const begun = new Map<string, number>()
  const first = new Set<string>()
  for (const { what, relay, id, key, n } of lines) {
    if (what === 'died') for (const [one, by] of flying) if (by === relay) flying.delete(one)
    if (id === undefined) continue
    if (what === 'start') {
      const by = flying.get(id)
      if (by !== undefined && !zombies.includes(by)) yield `${id} is in flight twice: ${by} and ${relay}`
      flying.set(id, relay)
      if (!first.has(id) && key !== undefined) {
        if (n! < (begun.get(key) ?? 0)) yield `${key}: ${n} came first after ${begun.get(key)}`
        begun.set(key, n!)
      }
      first.add(id)
    } else if (what === 'ok' || what === 'failed' || what === 'down') {
      if (flying.get(id) === relay) flying.delete(id)
      if (what === 'ok') arrived.set(id, (arrived.get(id) ?? 0) + 1)
    }
  }
  for (const id of ledger) if (!arrived.has(id) && !dead.includes(id)) yield `${id} is lost`
  const known = new Set(ledger)
  for (const id of arrived.keys()) if (!known.has(id)) yield `${id} was never committed`
  const repeated = [...arrived.values()].filter((times) => times > 1).length
  if (repeated > duplicates) yield `${repeated} came more than once, ${duplicates} may`
}

/** Refuses to go on when a child did not do what the test is about. */
export function mustCrash({ crashed, stderr }: { crashed: boolean; stderr: string }): void {
  if (!crashed) throw new WaybillError('NOT_CRASHED', `the process did not get there: ${stderr.slice(-500)}`)
}
