import pg from 'pg'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import type { OutboxReader } from '../../../src/adapter.ts'
import { event, type Source } from '../../../src/index.ts'
import { scale } from '../../support/scale.ts'
import { outboxOn, type TestOutbox } from '../support.ts'
import { until } from './support.ts'

const Placed = event<{ n: number }>('order.placed')
const CHANNEL = `'waybill_' || 'outbox'::regclass::oid`

let t: TestOutbox
/** Hears what writers tell relays. */
let listener: pg.Client
const heard: string[] = []

beforeEach(async () => {
  t = await outboxOn()
  heard.length = 0
  listener = new pg.Client({ connectionString: t.database.url })
  await listener.connect()
  listener.on('notification', ({ payload = '' }) => heard.push(payload))
  const { rows } = await listener.query(`SELECT ${CHANNEL} AS channel`)
  await listener.query(`LISTEN ${rows[0].channel}`)
})
afterEach(async () => {
  await listener.end()
  await t.end()
})

/** The outbox, telling of every take that has found something: then the relay works, finds no more, and goes idle. */
function watched(outbox: OutboxReader, onTaken: () => void): OutboxReader {
  const sources = new Map<Source, Source>()
  const watch = (source: Source): Source => ({
    name: source.name,
    features: source.features,
    async open(signal) {
      const session = await source.open(signal)
      if (session === undefined) return undefined
      const take = session.take.bind(session)
      session.take = async (...demand) => {
        const taken = await take(...demand)
        if (taken.length > 0) onTaken()
        return taken
      }
      return session
    },
  })
  return {
    name: outbox.name,
    reader(options) {
      const reader = outbox.reader(options)
      return {
        async assignment() {
          return (await reader.assignment()).map((source) => {
            if (!sources.has(source)) sources.set(source, watch(source))
            return sources.get(source)!
          })
        },
        close: () => reader.close(),
      }
    },
  }
}

/** Busy until then: a timer would be late by more than the steps of these races. */
async function spin(ms: number): Promise<void> {
  const end = performance.now() + ms
  while (performance.now() < end) await new Promise((resolve) => setImmediate(resolve))
}

function percentile(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!
}

describe('going idle', { timeout: 600_000 }, () => {
  /**
   * Each event is a race: when the one before it has been taken, the relay is about to find nothing more and to go idle.
   * At that very moment, or a little later each time, a writer enqueues, and commits at once or a little later still.
   * The relay polls once an hour: an event whose wake-up is missed does not arrive at all. All of them count.
   */
  test('of 1,000 events committed while the relay goes idle none waits for a poll', async () => {
    const races = scale({ test: 1000, full: 2000, torture: 100_000 })
    let taken = () => {}
    const arrived = new Map<string, number>()
    let arrival = () => {}
    const relay = t.relay({
      from: watched(t.outbox, () => taken()),
      to: async ({ id }) => {
        arrived.set(id, performance.now())
        arrival()
      },
      poll: '1h',
      maxPoll: '1h',
    })
    await relay.start()
    const client = await t.pool.connect()
    const delays: number[] = []
    let barrier = Promise.resolve()
    for (let race = 0; race < races; race++) {
      const event = Placed({ n: race })
      await client.query('BEGIN')
      await within(barrier, () => `race ${race}: the event before was not taken`)
      const next = new Promise<void>((resolve) => {
        taken = resolve
      })
      const here = new Promise<void>((resolve) => {
        arrival = () => arrived.has(event.id) && resolve()
      })
      await spin((race % 40) / 10)
      await t.outbox.enqueue(client, event)
      if (race % 3 === 2) await spin((race % 7) / 2)
      await client.query('COMMIT')
      const committed = performance.now()
      await within(here, () => `race ${race} was lost: its event was committed and nobody woke`)
      delays.push(arrived.get(event.id)! - committed)
      barrier = next
    }
    client.release()
    await relay.stop()
    expect(arrived.size).toBe(races)
    expect(await t.states()).toEqual({ published: races })
    // Both ways of waking were at work: writers that were refused the lock told, and others were found without that.
    expect(heard.length).toBeGreaterThan(races / 100)
    expect(heard.length).toBeLessThan(races * 0.99)
    delays.sort((a, b) => a - b)
    const [half, most, all] = [0.5, 0.99, 1].map((share) => percentile(delays, share)) as [number, number, number]
    console.log(`going idle, ${races} races: p50 ${half.toFixed(1)} ms, p99 ${most.toFixed(1)}, max ${all.toFixed(1)}`)
    // What is woken is there within milliseconds, and a poll would come after an hour. In tier test other files run beside it.
    expect(half).toBeLessThanOrEqual(scale({ test: 200, full: 50, torture: 50 }))
    expect(most).toBeLessThanOrEqual(scale({ test: 5000, full: 50, torture: 50 }))
  })

  test('while relays are busy writers tell nobody, and the first that finds one idle does', async () => {
    const letGo = t.sink.hold()
    const relay = t.relay({ batch: 1, maxBatch: 1, concurrency: 1, poll: '1h', maxPoll: '1h' })
    await t.enqueue(Array.from({ length: 5 }, (_, n) => Placed({ n })))
    await relay.start()
    await until(() => t.sink.calls.length > 0)
    const before = heard.length
    for (let n = 0; n < 20; n++) await t.enqueue(Placed({ n }))
    await t.pool.query(`SELECT pg_notify(${CHANNEL}, 'end')`)
    await until(() => heard.includes('end'))
    expect(heard.slice(before)).toEqual(['end'])
    letGo()
    await until(async () => (await t.states())['published'] === 25)
    // It says that it is idle a moment after it has found nothing more.
    const idle = `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
    await until(async () => (await t.pool.query(idle)).rowCount === 1)
    await t.enqueue(Placed({ n: 26 }))
    await until(() => heard.length > before + 1)
    await until(async () => (await t.states())['published'] === 26)
    await relay.stop()
  })
})

/** Fails when it takes longer than any scheduler keeps a process waiting. */
async function within(work: Promise<void>, what: () => string): Promise<void> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within 20 s: ${what()}`)), 20_000)
  })
  await Promise.race([work, late]).finally(() => clearTimeout(timer))
}
