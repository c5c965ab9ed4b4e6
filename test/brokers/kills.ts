import { afterEach, expect, test } from 'vitest'
import { type Outcome, systemClock } from '../../src/adapter.ts'
import { encodeData } from '../../src/cloudevents/index.ts'
import { event, type Message, type RawMessage } from '../../src/index.ts'
import { type RunningScript, runScript, type SeededRandom, seededRandom } from '../../src/testing/index.ts'
import { bundled } from '../support/bundled.ts'
import { scale } from '../support/scale.ts'
import { type KillStore, onPostgres } from './kill-store.ts'
import { NEVER, until } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
export const LONG = { timeout: 3_600_000 }

/** Where the messages of one test go: a queue, a stream, a topic. */
export interface Place {
  /** Tells the children where it is. */
  readonly job: object
  publish(messages: readonly RawMessage[], signal: AbortSignal): Promise<readonly Outcome[]>
  /** How many wait, are unsettled, or are to be tried again. */
  waiting(): Promise<number>
  dead(): Promise<number>
  close(): Promise<unknown>
}

export interface KillOptions {
  /** The broker, as the README calls it. */
  readonly broker: string
  /** The folder of `billing-child.ts` and `relay-child.ts`. */
  readonly folder: string
  place(): Promise<Place>
  /** The broker keeps the order of a key when a consumer dies. */
  readonly ordered?: boolean
  /** More stores than PostgreSQL, with the reader each needs. */
  readonly stores?: readonly { name: string; reader: string; make: () => Promise<KillStore> }[]
}

/** Consumers, and relays, are killed again and again: every message has had its effect, once, and nothing is left. */
export function killTests({ broker, folder, place, ordered = false, stores = [] }: KillOptions): void {
  const ends: (() => unknown)[] = []
  afterEach(async () => {
    for (const end of ends.splice(0).reverse()) await end()
  })

  async function world(make: () => Promise<KillStore>) {
    const store = await make()
    ends.push(() => store.close())
    const to = await place()
    ends.push(() => to.close())
    const child = async (name: string, more: object = {}): Promise<RunningScript> => {
      const env = { JOB: JSON.stringify({ ...to.job, ...store.job, ...more }) }
      const running = runScript({ script: bundled(new URL(`${name}.ts`, folder)), env, timeout: LONG.timeout })
      ends.push(async () => {
        running.kill()
        await running.finished.catch(() => {})
      })
      await running.line('ready', 100_000)
      return running
    }
    return { store, to, child }
  }

  async function done(store: KillStore, count: number, limit = 100_000): Promise<void> {
    await until(`${count} are done`, async () => (await store.count()) >= count, limit)
  }

  async function verify({ store, to, sent, inOrder }: Verified): Promise<void> {
    const effects = await store.effects()
    const had = new Set(effects.map(({ id }) => id))
    expect(effects.length, 'each once').toBe(had.size)
    expect(sent.filter(({ id }) => !had.has(id)).map(({ id }) => id)).toEqual([])
    expect(had.size).toBe(sent.length)
    expect({ waiting: await to.waiting(), dead: await to.dead() }).toEqual({ waiting: 0, dead: 0 })
    if (!inOrder) return
    const last = new Map<string, number>()
    for (const { key, n } of effects) {
      expect(n, `after ${last.get(key)} of ${key}`).toBeGreaterThan(last.get(key) ?? -1)
      last.set(key, n)
    }
  }

  const effects = ordered ? 'every effect once, each key in order' : 'every effect once'
  test(`a consumer is killed again and again, inbox on: nothing lost, ${effects}`, LONG, async () => {
    const total = scale({ test: 1000, full: 5000, torture: 50_000 })
    const kills = scale({ test: 2, full: 10, torture: 200 })
    const random = seededRandom(11)
    const { store, to, child } = await world(onPostgres)
    const sent = Array.from({ length: total }, (_, n) => Placed({ n }, { key: `key ${n % 50}` }))
    for (let from = 0; from < total; from += 500) {
      const outcomes = await to.publish(sent.slice(from, from + 500).map(encodeData), NEVER)
      expect(outcomes.every(({ kind }) => kind === 'ok')).toBe(true)
    }
    for (let kill = 0; kill < kills; kill++) {
      const victim = await child('billing-child')
      const before = await store.count()
      // Not so many that there would be nothing left for the last ones.
      const room = (total - before) / (kills - kill)
      const after = Math.min(some(random), Math.max(50, Math.floor(room * 0.8)))
      await done(store, Math.min(before + after, total))
      victim.kill()
      await victim.finished
    }
    const last = await child('billing-child')
    await done(store, total, 600_000)
    await until('all is settled', async () => (await to.waiting()) === 0)
    await endGracefully(last)
    await verify({ store, to, sent, inOrder: ordered })
  })

  const pairs = [
    { name: 'PostgreSQL', reader: 'owner', make: onPostgres },
    { name: 'PostgreSQL', reader: 'lease', make: onPostgres },
    ...stores,
  ]
  for (const { name, reader, make } of pairs) {
    test(`outbox in ${name} (${reader}) → relay → ${broker} → consumer with inbox, both killed`, LONG, async () => {
      const rounds = scale({ test: 2, full: 4, torture: 40 })
      const random = seededRandom(21)
      const { store, to, child } = await world(make)
      const sent: Message[] = []
      let writing = true
      const writer = (async () => {
        while (writing) {
          // Not faster than they are handled: the test is about kills, not about a backlog.
          if (sent.length > (await store.count()) + 500) {
            await systemClock.sleep(20)
            continue
          }
          const from = sent.length
          const events = Array.from({ length: 20 }, (_, i) => Placed({ n: from + i }, { key: `key ${i}` }))
          await store.enqueue(events)
          sent.push(...events)
        }
      })()
      let relay = await child('relay-child', { reader })
      let billing = await child('billing-child')
      for (let round = 0; round < rounds; round++) {
        await done(store, (await store.count()) + some(random))
        const which = random.next()
        if (which < 0.7) {
          relay.kill()
          await relay.finished
          relay = await child('relay-child', { reader })
        }
        if (which > 0.3) {
          billing.kill()
          await billing.finished
          billing = await child('billing-child')
        }
      }
      writing = false
      await writer
      await until('all is published', async () => (await store.pending()) === 0, 300_000)
      await done(store, sent.length, 300_000)
      await until('all is settled', async () => (await to.waiting()) === 0)
      for (const one of [relay, billing]) await endGracefully(one)
      // The lease reader keeps no order.
      await verify({ store, to, sent, inOrder: ordered && reader === 'owner' })
    })
  }
}

interface Verified {
  readonly store: KillStore
  readonly to: Place
  readonly sent: readonly Message[]
  readonly inOrder: boolean
}

/** So many messages after it was ready, one is killed. */
function some(random: SeededRandom): number {
  return 50 + Math.floor(random.next() * 450)
}

async function endGracefully(child: RunningScript): Promise<void> {
  child.kill('SIGTERM')
  expect((await child.finished).code).toBe(0)
}
