import { afterEach, describe, expect, test } from 'vitest'
import {
  type Delivery,
  type Demand,
  OK,
  type OutboxReader,
  type Outcome,
  type PublisherLike,
  type ReaderOptions,
  type Session,
  type Settlement,
} from '../../src/adapter.ts'
import { Message, outboxSource, type RawMessage, Relay, type RelayOptions, type Source } from '../../src/index.ts'
import { FakeClock, recordTelemetry, type TelemetryRecorder } from '../../src/testing/index.ts'

/** What a relay asks of an outbox and of its destination when it was told nothing. Each default has a test of its own. */

const NO_JITTER = { next: () => 0, fill: () => {} }
const FAILED: Outcome = { kind: 'failed', error: new Error('no') }
const DOWN: Outcome = { kind: 'down', error: new Error('away') }

/** An outbox that has as much as it is asked for, up to `rows`, and writes down what it is asked. */
class Recording implements OutboxReader {
  readonly name = 'recording'
  told: ReaderOptions | undefined
  /** At which times the relay said that it lives. */
  readonly shares: number[] = []
  readonly takes: Demand[] = []
  readonly waits: number[] = []
  readonly settled: { attempts: number; settlement: Settlement }[] = []
  readonly #clock: FakeClock
  readonly #rows: { attempts: number }[]
  readonly #source: Source

  constructor(clock: FakeClock, rows: number | readonly number[] = 0) {
    this.#clock = clock
    this.#rows = (typeof rows === 'number' ? Array<number>(rows).fill(0) : rows).map((attempts) => ({ attempts }))
    const features = { redelivers: true, holdsKeys: true }
    this.#source = { name: this.name, features, open: async () => this.#session() }
  }

  reader(options: ReaderOptions) {
    this.told = options
    return {
      assignment: async () => {
        this.shares.push(this.#clock.monotonic())
        return [this.#source]
      },
      close: async () => {},
    }
  }

  #session(): Session {
    return {
      lost: new AbortController().signal,
      take: async (demand) => {
        this.takes.push(demand)
        return this.#rows.splice(0, demand.count).map(({ attempts }): Delivery => {
          return { message: raw(), key: undefined, attempts, size: 1 }
        })
      },
      wait: (ms, signal) => {
        this.waits.push(ms)
        return this.#clock.sleep(ms, signal)
      },
      settle: async (batch) => {
        for (const [{ attempts }, settlement] of batch) this.settled.push({ attempts, settlement })
        return 0
      },
      close: async () => {},
    }
  }
}

let made = 0
const raw = (): RawMessage => new Message({ id: `m${++made}`, source: '/test', type: 'thing.happened' }, '{}')

let clock: FakeClock
let relay: Relay | undefined
let telemetry: TelemetryRecorder | undefined

/** A publisher of batches that settles each message as told, or never. */
const publisher = (outcome: Outcome | 'never', calls: AbortSignal[] = []): PublisherLike => ({
  name: 'to',
  features: {},
  publish: (messages, signal) => {
    calls.push(signal)
    return outcome === 'never' ? new Promise(() => {}) : Promise.resolve(messages.map(() => outcome))
  },
})

async function started(
  rows: number | readonly number[],
  to: PublisherLike = publisher(OK),
  options: Partial<RelayOptions> = {},
): Promise<Recording> {
  clock = new FakeClock()
  const from = new Recording(clock, rows)
  relay = new Relay({ from, to, clock, random: NO_JITTER, ...options })
  await relay.start()
  await clock.settle()
  return from
}

afterEach(async () => {
  telemetry?.stop()
  const stopping = relay?.stop()
  await clock?.advance(60_000)
  await stopping
  relay = undefined
})

describe('a relay that is told nothing', () => {
  test('takes 100 at first', async () => {
    const { takes } = await started(50)
    expect(takes[0]!.count).toBe(100)
  })

  test('takes twice as many while they come full, up to 1000, and 100 again when they do not', async () => {
    const from = await started(3500)
    await clock.until(() => from.settled.length === 3500)
    await clock.advance(1000)
    const counts = from.takes.map(({ count }) => count)
    expect(counts.slice(0, 5)).toEqual([100, 200, 400, 800, 1000])
    expect(Math.max(...counts)).toBe(1000)
    expect(counts.at(-1)).toBe(100)
  })

  test('looks again after 1 s, doubling to 5 s, while there is nothing', async () => {
    const { waits } = await started(0)
    await clock.advance(30_000)
    expect(waits.slice(0, 5)).toEqual([1000, 2000, 4000, 5000, 5000])
  })

  test('asks for a lease of 60 s, and says every 20 s that it lives', async () => {
    const from = await started(0)
    expect(from.told!.lease).toBe(60_000)
    await clock.advance(60_000)
    expect(from.shares.map((at) => at - from.shares[0]!)).toEqual([0, 20_000, 40_000, 60_000])
  })

  test('gives an event 25 attempts, and tells its reader so', async () => {
    const from = await started([23, 24], publisher(FAILED))
    await clock.until(() => from.settled.length === 2)
    expect(from.settled.map(({ attempts, settlement }) => [attempts, settlement.kind])).toEqual([
      [23, 'retry'],
      [24, 'dead'],
    ])
    expect(from.told!.attempts).toBe(25)
  })

  test('tries an event again after 1 s, doubling to 60 s', async () => {
    const from = await started([0, 1, 2, 3, 4, 5, 6, 20], publisher(FAILED))
    await clock.until(() => from.settled.length === 8)
    const pauses = from.settled.map(({ settlement }) => settlement.kind === 'retry' && settlement.after)
    expect(pauses).toEqual([1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000])
  })

  test('adds up to 200 ms to that, at random', async () => {
    const from = await started([0, 20], publisher(FAILED), { random: { next: () => 0.5, fill: () => {} } })
    await clock.until(() => from.settled.length === 2)
    const pauses = from.settled.map(({ settlement }) => settlement.kind === 'retry' && settlement.after)
    expect(pauses).toEqual([1100, 60_100])
  })

  test('pauses for 200 ms, doubling to 30 s, while its destination is down', async () => {
    telemetry = recordTelemetry(['flow.paused'])
    await started(1, publisher(DOWN))
    await clock.until(() => telemetry!.of('flow.paused').length >= 10)
    const pauses = telemetry.of('flow.paused').map(({ retryIn }) => retryIn)
    expect(pauses.slice(0, 10)).toEqual([200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000])
  })

  test('publishes two batches at once', async () => {
    const calls: AbortSignal[] = []
    await started(3500, publisher('never', calls))
    await clock.advance(1000)
    expect(calls).toHaveLength(2)
  })

  test('lets what is being published go on for 10 s when it is stopped', async () => {
    const calls: AbortSignal[] = []
    await started(1, publisher('never', calls))
    await clock.until(() => calls.length === 1)
    const stopping = relay!.stop()
    await clock.advance(9999)
    expect(calls[0]!.aborted).toBe(false)
    await clock.advance(1)
    expect(calls[0]!.aborted).toBe(true)
    await clock.advance(20_000)
    await stopping
  })

  test('reads as it finds the table, alone, in order, is woken, and keeps what it has published', async () => {
    const { told } = await started(0)
    const { reader, shards, deadKey, wake, deletes } = told!
    expect({ reader, shards, deadKey, wake, deletes }).toEqual({
      reader: 'auto',
      shards: 1,
      deadKey: 'block',
      wake: true,
      deletes: false,
    })
  })
})

describe('a relay that is told so', () => {
  test('takes as many at first as it is told, and never more than it is told', async () => {
    const from = await started(300, publisher(OK), { batch: 7, maxBatch: 20 })
    await clock.until(() => from.settled.length === 300)
    const counts = from.takes.map(({ count }) => count)
    expect(counts.slice(0, 3)).toEqual([7, 14, 20])
    expect(Math.max(...counts)).toBe(20)
  })

  test('a batch larger than 1000 is the largest too', async () => {
    const from = await started(6000, publisher(OK), { batch: 2000 })
    await clock.until(() => from.settled.length === 6000)
    expect(from.takes.slice(0, 2).map(({ count }) => count)).toEqual([2000, 2000])
  })

  test('looks as often as it is told', async () => {
    const { waits } = await started(0, publisher(OK), { poll: '300ms', maxPoll: '1s' })
    await clock.advance(5000)
    expect(waits.slice(0, 4)).toEqual([300, 600, 1000, 1000])
  })

  test('gives its reader the lease and the attempts it is told', async () => {
    const { told } = await started(0, publisher(OK), {
      lease: '9s',
      retry: { attempts: 3 },
      reader: 'lease',
      wake: false,
    })
    expect(told).toMatchObject({ lease: 9000, attempts: 3, reader: 'lease', wake: false })
  })
})

test('an outbox as a source has the same: 60 s, 25 attempts, in order, woken, kept', () => {
  const outbox = new Recording(new FakeClock())
  outboxSource(outbox)
  const { clock: _, ...told } = outbox.told!
  expect(told).toEqual({
    reader: 'auto',
    shards: 1,
    lease: 60_000,
    deadKey: 'block',
    deletes: false,
    wake: true,
    attempts: 25,
  })
})
