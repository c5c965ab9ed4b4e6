import {
  type Clock,
  type GaugeName,
  type GaugeSource,
  type GaugeSubject,
  type GaugeValue,
  observed,
  systemClock,
  withDeadline,
} from '../core/index.ts'
import type { WorkerGauge } from './metric.ts'

export const GAUGE_MODES = ['leader', 'all', 'off'] as const
/**
 * Who reports numbers of tables, sagas and projections: the process that leads each of them, every process, or none. What a
 * process knows without asking a store (whether it is paused, whether it leads) it reports in any case.
 */
export type GaugeMode = (typeof GAUGE_MODES)[number]

/** One sample of a gauge. */
export interface Sample {
  readonly labels: Readonly<Record<string, string>>
  readonly value: number
}

type Samples = Map<GaugeName | WorkerGauge, Sample[]>

/** A scrape responds within a second, so it waits less than that for a database. */
const READ_WITHIN = 700
/** How much earlier counting ends: what is known has to come back, through a pool and an event loop that are busy. */
const SPARE = 100

/** All gauges of one scrape are asked for at once; for so long they share one answer. */
const SHARED_FOR = 50

/**
 * Asks those who run in this process for their numbers, when somebody scrapes. A table that does not answer in time is
 * left out, and said to be so; it is asked again only when it has answered.
 */
export class GaugeBoard {
  readonly #mode: GaugeMode
  readonly #clock: Clock
  readonly #pending = new Map<GaugeSource, Promise<readonly GaugeValue[]>>()
  #reading: Promise<Samples> | undefined
  #readAt = 0

  constructor(mode: GaugeMode, clock: Clock = systemClock) {
    this.#mode = mode
    this.#clock = clock
  }

  async samples(gauge: GaugeName | WorkerGauge): Promise<readonly Sample[]> {
    const now = this.#clock.monotonic()
    if (this.#reading === undefined || now - this.#readAt > SHARED_FOR) {
      this.#readAt = now
      this.#reading = this.#read()
    }
    return (await this.#reading).get(gauge) ?? []
  }

  async #read(): Promise<Samples> {
    const samples: Samples = new Map()
    const add = (gauge: GaugeName | WorkerGauge, labels: Sample['labels'], value: number) => {
      if (Number.isNaN(value)) return
      const list = samples.get(gauge) ?? []
      samples.set(gauge, list)
      list.push({ labels, value })
    }
    addWorkers(add)
    await Promise.all(subjects().map((one) => this.#readSubject(one, add)))
    return samples
  }

  async #readSubject({ subject, of, stores }: Subject, add: Add): Promise<void> {
    const whose = { [subject]: of }
    const until = this.#clock.monotonic() + READ_WITHIN
    for (const { gauge, value } of together(stores.flat().flatMap(localOf))) add(gauge, whose, value)
    // Who reports of the sagas of a store has to ask it.
    if (this.#mode === 'off' && subject === 'saga') return
    const all = await Promise.all(stores.map((sources) => this.#readStore(sources, until)))
    if (subject !== 'saga') add(`${subject}.leads`, whose, all.some(({ leads }) => leads) ? 1 : 0)
    const given = all.flatMap(({ values }) => (values === undefined ? [] : [values]))
    if (given.length === 0) return
    // Part of it would look as if the rest had gone out.
    const missing = given.includes(MISSING)
    add('up', whose, missing ? 0 : 1)
    if (missing) return
    for (const { gauge, value, labels } of together(given.flat())) add(gauge, { ...whose, ...labels }, value)
  }

  /** Whether this process reports for the store, and what: nothing where another does, `MISSING` where nobody knows. */
  async #readStore(
    sources: readonly GaugeSource[],
    until: number,
  ): Promise<{ readonly leads: boolean; readonly values?: readonly GaugeValue[] }> {
    const leads = await Promise.all(sources.map((source) => this.#inTime(async () => source.leads(), until)))
    const leader = sources[leads.indexOf(true)]
    if (this.#mode === 'off') return { leads: leader !== undefined }
    const asked = leader ?? (this.#mode === 'all' ? sources[0] : undefined)
    // Another reports, or nobody can.
    if (asked === undefined) return { leads: false, ...(!leads.includes(false) && { values: MISSING }) }
    const values = await this.#within(asked, until)
    // A process that was suspended learns only now that another leads, who reports the same.
    const reported = leader !== undefined && values !== undefined
    const still = reported ? await this.#inTime(async () => leader.leads(), until) : true
    const led = leader !== undefined && still === true
    if (still === false && this.#mode === 'leader') return { leads: led }
    // Nobody knows any more: its store has gone away in the middle.
    if (still === undefined && this.#mode === 'leader') return { leads: led, values: MISSING }
    return { leads: led, values: values ?? MISSING }
  }

  /** `undefined`: it did not answer, or failed. */
  async #within(source: GaugeSource, until: number): Promise<readonly GaugeValue[] | undefined> {
    let reading = this.#pending.get(source)
    if (reading === undefined) {
      const left = Math.max(0, until - SPARE - this.#clock.monotonic())
      reading = (async () => source.read(left))().finally(() => this.#pending.delete(source))
      this.#pending.set(source, reading)
    }
    const asked = reading
    return this.#inTime(() => asked, until)
  }

  async #inTime<T>(ask: () => Promise<T>, until: number): Promise<T | undefined> {
    const answer = ask().catch(() => undefined)
    const left = Math.max(0, until - this.#clock.monotonic())
    return withDeadline<T | undefined>(answer, left, this.#clock, () => undefined)
  }
}

type Add = (gauge: GaugeName | WorkerGauge, labels: Sample['labels'], value: number) => void

/** Several workers of one name are one to whoever looks: the latest success, and all that is unsettled. */
function addWorkers(add: Add): void {
  const workers = new Map<string, { success?: number; unsettled?: number }>()
  for (const worker of observed) {
    const { lastSuccess, unsettled } = attempt(() => worker.status()) ?? {}
    const known = workers.get(worker.name) ?? {}
    workers.set(worker.name, known)
    if (lastSuccess !== undefined) known.success = Math.max(known.success ?? 0, lastSuccess.getTime() / 1000)
    if (unsettled !== undefined) known.unsettled = (known.unsettled ?? 0) + unsettled
  }
  for (const [worker, { success, unsettled }] of workers) {
    if (success !== undefined) add('worker.last_success', { worker }, success)
    if (unsettled !== undefined) add('worker.unsettled', { worker }, unsettled)
  }
}

const MISSING: readonly GaugeValue[] = []

/** What has one name: the same of several stores, such as two databases with a table of one name, is reported in sum. */
interface Subject {
  readonly subject: GaugeSubject
  readonly of: string
  /** Those who can answer for one and the same. */
  readonly stores: readonly (readonly GaugeSource[])[]
}

function subjects(): readonly Subject[] {
  const found = new Map<string, { of: GaugeSource; stores: Map<object, GaugeSource[]> }>()
  for (const { gauges } of observed) {
    if (gauges === undefined) continue
    const name = `${gauges.subject} ${gauges.of}`
    const { stores } = getOrAdd(found, name, () => ({ of: gauges, stores: new Map() }))
    getOrAdd(stores, gauges.store ?? gauges, () => []).push(gauges)
  }
  return [...found.values()].map(({ of: { subject, of }, stores }) => ({ subject, of, stores: [...stores.values()] }))
}

function getOrAdd<Key, Value>(map: Map<Key, Value>, key: Key, make: () => Value): Value {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}

/** What a worker knows by itself. One that fails to say it costs nobody else their numbers. */
function localOf(source: GaugeSource): readonly GaugeValue[] {
  return attempt(() => source.local?.()) ?? []
}

function attempt<T>(ask: () => T): T | undefined {
  try {
    return ask()
  } catch {
    return undefined
  }
}

/** Of several workers at one table, and of several tables of one name: paused when one is, and what they have in sum. */
function together(values: readonly GaugeValue[]): readonly GaugeValue[] {
  const sums = new Map<string, GaugeValue>()
  for (const one of values) {
    const { gauge, value, labels } = one
    const key = JSON.stringify([gauge, labels])
    const before = sums.get(key)
    sums.set(key, before === undefined ? one : { ...before, value: joined(gauge, before.value, value) })
  }
  return [...sums.values()]
}

/** Counts are added; of ages and of what is true or not the largest counts. */
export function joined(gauge: GaugeName | WorkerGauge, one: number, another: number): number {
  return /paused|estimated|oldest|lag_seconds|held/.test(gauge) ? Math.max(one, another) : one + another
}

/** A gauge that a registry of prom-client can hold: it asks when somebody scrapes. */
export class AskedGauge {
  readonly type = 'gauge'
  readonly aggregator = 'sum'
  readonly name: string
  readonly help: string
  /** Replaced by the next recorder on the same registry. */
  ask: () => Promise<readonly Sample[]>

  constructor(name: string, help: string, ask: () => Promise<readonly Sample[]>) {
    this.name = name
    this.help = help
    this.ask = ask
  }

  async get(): Promise<object> {
    const { name, help, type, aggregator } = this
    return { name, help, type, aggregator, values: await this.ask() }
  }

  reset(): void {}
}
