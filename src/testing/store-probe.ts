import { ok, rejects } from 'node:assert/strict'
import { type Clock, checkOptions, systemClock, WaybillError, wholeNumber } from '../core/index.ts'
import type { UnitOfWork } from '../store/index.ts'
import { type Suite, type SuiteOptions, suite, within } from './conformance.ts'

/** A store for the time of one case: everything in it is fresh, and nobody else's is. */
export interface StoreUnderTest {
  /** For relays and other readers of the store. Default: the system's. */
  readonly clock?: Clock
  /** Lets time pass, for the store and for `clock`. Absent: the suite waits, where something has to run out. */
  advance?(ms: number): Promise<void>
  close(): Promise<void>
}

/** Makes a store for a suite, fresh for each case. */
export interface StoreFactory<Under extends StoreUnderTest, Features = Record<never, never>> {
  readonly name: string
  /** A case that needs what is not declared is skipped, and says so. */
  readonly features?: Features
  /** Called for every case. */
  create(): Promise<Under>
  /** How long, in milliseconds, something may take that must happen. Default 15 s. */
  readonly patience?: number
  /** How long to look for something that must not happen. Default 200 ms. */
  readonly quiet?: number
}

export interface StoreCase<Probe> {
  readonly name: string
  readonly needs?: readonly string[]
  run(probe: Probe): Promise<void>
}

export interface StoreSuite<Under extends StoreUnderTest, Probe> {
  /** As errors name it. */
  readonly kind: string
  readonly features: readonly string[]
  readonly cases: readonly StoreCase<Probe>[]
  /** What the cases are given. It is ended before the store is closed. */
  probe(under: Under, time: Time): Probe & { end?(): Promise<void> }
}

/** The cases of one port, for one implementation of it. */
export function storeSuite<Under extends StoreUnderTest, Features, Probe>(
  { kind, features: known, cases, probe: probeOf }: StoreSuite<Under, Probe>,
  factory: StoreFactory<Under, Features>,
  options: SuiteOptions,
): Suite {
  const where = `${kind} suite ${factory.name}`
  checkOptions(where, factory, { name: true, features: true, create: true, patience: true, quiet: true })
  checkOptions(where, options, { skips: true })
  const features = (factory.features ?? {}) as Record<string, boolean>
  checkOptions(`${where}: features`, features, Object.fromEntries(known.map((name) => [name, true as const])))
  const patience = wholeNumber(`${where}: patience`, factory.patience ?? 15_000)
  const quiet = wholeNumber(`${where}: quiet`, factory.quiet ?? 200)
  const runnable = cases.map((one) => ({
    ...one,
    run: async () => {
      const under = await factory.create()
      const probe = probeOf(under, new Time(under, patience, quiet))
      try {
        await one.run(probe)
      } finally {
        await probe.end?.()
        await under.close()
      }
    },
  }))
  return suite(factory.name, runnable, features, options)
}

/** Between two looks, in milliseconds. */
const LOOK_EVERY = 20

/** Time as it passes for the store: really, or when told. */
export class Time {
  readonly quiet: number
  readonly patience: number
  readonly clock: Clock
  readonly #advance: ((ms: number) => Promise<void>) | undefined

  constructor({ clock, advance }: StoreUnderTest, patience: number, quiet: number) {
    this.clock = clock ?? systemClock
    this.#advance = advance
    this.patience = patience
    this.quiet = quiet
  }

  now(): number {
    return this.clock.now()
  }

  async pass(ms: number): Promise<void> {
    await (this.#advance?.(ms) ?? systemClock.sleep(ms))
  }

  /** Looks again and again until it is there. */
  async until<T>(what: string, look: () => Promise<T | undefined | false>): Promise<T> {
    const end = this.now() + this.patience
    for (;;) {
      const found = await this.soon(look(), what)
      if (found !== undefined && found !== false) return found
      ok(this.now() < end, `within ${this.patience} ms: ${what}`)
      await this.pass(LOOK_EVERY)
    }
  }

  /** Looks again and again for so long, and each time it must hold. */
  async throughout(ms: number, look: () => Promise<void>): Promise<void> {
    const end = this.now() + ms
    for (await look(); this.now() < end; await look()) await this.pass(LOOK_EVERY)
  }

  /** An answer that waits for no time to pass. */
  soon<T>(work: Promise<T>, what: string): Promise<T> {
    return within(this.patience, work, () => `no answer: ${what}`)
  }
}

/** A transaction that stays open until `commit` or `rollback`. */
export interface OpenTransaction<T> {
  /** What the function in it has returned. */
  readonly value: T
  commit(): Promise<void>
  rollback(): Promise<void>
}

export async function openTransaction<Tx, T>(
  work: UnitOfWork<Tx>,
  fn: (tx: Tx) => Promise<T>,
): Promise<OpenTransaction<T>> {
  let end!: (error?: Error) => void
  const ending = new Promise<void>((resolve, reject) => {
    end = (error) => (error === undefined ? resolve() : reject(error))
  })
  ending.catch(() => {})
  let begun!: (value: T) => void
  const beginning = new Promise<T>((resolve) => {
    begun = resolve
  })
  const whole = work.withTransaction(async (tx) => {
    begun(await fn(tx))
    await ending
  })
  whole.catch(() => {})
  // Begun, or failed before; both promises are of this transaction alone.
  const value = (await Promise.race([beginning, whole])) as T
  return {
    value,
    async commit() {
      end()
      await whole
    },
    async rollback() {
      const wanted = new Error('the case asked for a rollback')
      end(wanted)
      await whole.catch((error) => {
        if (error !== wanted) throw error
      })
    },
  }
}

/** It must fail with this code, and say this. */
export async function refused(work: Promise<unknown>, code: string, says = /./): Promise<void> {
  await rejects(work, (error) => {
    ok(error instanceof WaybillError, `a WaybillError, not ${String(error)}`)
    ok(error.code === code, `the code is ${code}, not ${error.code}: ${error.message}`)
    ok(says.test(error.message), `it says ${says}: ${error.message}`)
    return true
  })
}
