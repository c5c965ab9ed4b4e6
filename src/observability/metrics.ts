import {
  checkOptions,
  describe,
  oneOf,
  type TelemetryName,
  telemetry,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { AskedGauge, GAUGE_MODES, GaugeBoard, type GaugeMode, joined, type Sample } from './gauges.ts'
import { boundedLabel } from './label.ts'
import type { Labels, Metric, Write } from './metric.ts'
import { METRICS } from './metrics-table.ts'
import { CounterTally, HistogramTally } from './tally.ts'

/** What we call of `prom-client`. */
export interface PromClient {
  readonly Counter: new (config: PromConfig) => { inc(labels: Labels, value: number): void }
  readonly Gauge: new (config: PromConfig) => { set(labels: Labels, value: number): void }
  readonly register: PromRegistry
}

interface PromConfig {
  name: string
  help: string
  labelNames: string[]
  registers: never[]
}

/** The few methods of a prom-client registry that are called. */
export interface PromRegistry {
  getSingleMetric(name: string): unknown
  // A metric of our own has the methods a registry calls; its type asks for more.
  registerMetric(metric: never): void
}

/** Which prom-client and registry are used, and which labels may appear. */
export interface MetricsOptions {
  /** `import * as client from 'prom-client'` */
  client: PromClient
  /** Default: the client's own. */
  registry?: PromRegistry
  /**
   * How many event types have a label of their own, or which. Default the first 100 that come. The others are
   * counted as `other`.
   */
  types?: number | readonly string[]
  /** The same for topics. */
  topics?: number | readonly string[]
  /** Which tenants have a label of their own; the others are `other`, and messages without one ''. Default: no label. */
  tenants?: readonly string[]
  /**
   * Who reports how much is in a table: the process that leads it (`leader`, default), so that sums over processes are
   * right; every process with a relay of it (`all`); or nobody (`off`): no scrape asks a store then.
   */
  gauges?: GaugeMode
}

/** Two recorders on one registry would count everything twice. */
const recording = new WeakSet<PromRegistry>()

/**
 * Keeps Prometheus metrics of everything in the table of telemetry events, and returns the way to stop. The metrics
 * stay registered then, and a later recorder goes on with them.
 */
export function recordMetrics(options: MetricsOptions): () => void {
  checkOptions('recordMetrics', options, {
    client: true,
    registry: true,
    types: true,
    topics: true,
    tenants: true,
    gauges: true,
  })
  const client = checkClient(options?.client)
  const registry = checkRegistry(options.registry ?? client.register)
  const bounds: Bounds = {
    type: countBound('types', options.types ?? 100),
    topic: countBound('topics', options.topics ?? 100),
    tenant: tenantBound(options.tenants),
  }
  const board = new GaugeBoard(oneOf('recordMetrics: gauges', options.gauges ?? 'leader', GAUGE_MODES))
  if (recording.has(registry)) {
    const text = 'recordMetrics: this registry is being recorded to already; stop that first, or give another registry'
    throw new WaybillError('ALREADY_RECORDING', text)
  }
  refuseTaken(registry, bounds)
  const stops = METRICS.flatMap((metric) => {
    if (metric.asks !== undefined) return [askWith(registry, metric, bounds, board)]
    const write = writerOf(client, registry, metric, bounds)
    return Object.entries(metric.from).map(([name, record]) =>
      telemetry[name as TelemetryName].subscribe((event) => (record as RecordEvent)(event, write)),
    )
  })
  for (const metric of METRICS) {
    const ours = registry.getSingleMetric(metric.name) as object | undefined
    if (ours !== undefined) made.set(ours, labelsOf(metric, bounds).join())
  }
  recording.add(registry)
  return () => {
    recording.delete(registry)
    for (const stop of stops) stop()
  }
}

/** Metrics that a recorder has made, and their labels. */
const made = new WeakMap<object, string>()

function labelsOf({ labels }: Metric, { tenant }: Bounds): string[] {
  return labels.filter((label) => label !== 'tenant' || tenant !== undefined)
}

/**
 * A registry may hold metrics of others. One of the same name would get our numbers, or, with other labels, fail every scrape; and so
 * would one of ours that an earlier recorder has made with other labels.
 */
function refuseTaken(registry: PromRegistry, bounds: Bounds): void {
  const taken = METRICS.filter((metric) => {
    const known = registry.getSingleMetric(metric.name) as object | undefined
    return known !== undefined && made.get(known) !== labelsOf(metric, bounds).join()
  })
  if (taken.length === 0) return
  const names = taken.map(({ name }) => name).join(', ')
  const text = `recordMetrics: this registry has metrics of these names already, of others or with other labels: ${names}`
  throw new WaybillError('INVALID_OPTION', `${text}; rename yours, give another registry, or clear this one`)
}

type RecordEvent = (event: unknown, write: Write) => void

type Bound = (value: string) => string

/** Labels whose values come with messages. `tenant` is `undefined` where nobody asked for it. */
interface Bounds {
  readonly type: Bound
  readonly topic: Bound
  readonly tenant: Bound | undefined
}

/** Lets a registry ask; returns the way to end that. */
function askWith(
  registry: PromRegistry,
  { name, help, asks }: Metric,
  { type }: Bounds,
  board: GaugeBoard,
): () => void {
  const ask = async (): Promise<readonly Sample[]> => {
    const samples = await board.samples(asks!)
    return samples.some(({ labels }) => labels['type'] !== undefined) ? bounded(samples, type, asks!) : samples
  }
  const known = registry.getSingleMetric(name)
  const gauge = known instanceof AskedGauge ? known : new AskedGauge(name, help, ask)
  gauge.ask = ask
  if (gauge !== known) registry.registerMetric(gauge as never)
  return () => {
    gauge.ask = async () => []
  }
}

/** Types beyond the bound are one series: a scrape that has a series twice is refused. */
function bounded(samples: readonly Sample[], type: Bound, gauge: NonNullable<Metric['asks']>): readonly Sample[] {
  const found = new Map<string, Sample>()
  for (const { labels: given, value } of samples) {
    const labels = { ...given, type: type(given['type']!) }
    const key = JSON.stringify(labels)
    const before = found.get(key)
    found.set(key, { labels, value: before === undefined ? value : joined(gauge, before.value, value) })
  }
  return [...found.values()]
}

/** Writes to one metric, its labels bounded. */
function writerOf(client: PromClient, registry: PromRegistry, metric: Metric, bounds: Bounds): Write {
  const { type, topic, tenant } = bounds
  const labelNames = labelsOf(metric, bounds)
  const send = open(client, registry, metric, labelNames)
  const hasType = labelNames.includes('type')
  const hasTopic = labelNames.includes('topic')
  const hasTenant = metric.labels.includes('tenant')
  return (labels, value, times) => {
    if (hasType) labels['type'] = type(labels['type']!)
    if (hasTopic) labels['topic'] = topic(labels['topic']!)
    if (hasTenant && tenant !== undefined) labels['tenant'] = tenant(labels['tenant']!)
    send(labels, value, times)
  }
}

function open(client: PromClient, registry: PromRegistry, metric: Metric, labelNames: string[]): Write {
  const { kind, name, help, buckets = [] } = metric
  const config = { name, help, labelNames, registers: [registry] as never[] }
  const known = registry.getSingleMetric(name)
  if (kind === 'gauge') {
    const gauge = (known ?? new client.Gauge(config)) as InstanceType<PromClient['Gauge']>
    return (labels, value) => gauge.set(labels, value)
  }
  if (kind === 'counter') {
    const counter = (known ?? new client.Counter(config)) as Collected<InstanceType<PromClient['Counter']>>
    const tally = tallies.get(counter) ?? talliedFor(counter, labelNames)
    counter.collect = () => tally.flush((labels, value) => counter.inc(labels, value))
    return (labels, value) => tally.add(labels, value)
  }
  const histogram = known instanceof HistogramTally ? known : new HistogramTally(name, help, labelNames, buckets)
  registry.registerMetric(histogram as never)
  return (labels, value, times) => histogram.observe(labels, value, times)
}

/** A later recorder goes on with what an earlier one has not handed over. */
const tallies = new WeakMap<object, CounterTally>()

/** What is not handed over yet is gone too when a registry is reset. */
function talliedFor(counter: Collected<object>, labelNames: string[]): CounterTally {
  const tally = new CounterTally(labelNames)
  tallies.set(counter, tally)
  const { reset } = counter
  counter.reset = () => {
    tally.flush(() => {})
    reset?.call(counter)
  }
  return tally
}

/** What prom-client calls before it reads a metric, and when a registry is reset. */
type Collected<Metric> = Metric & { collect?: () => void; reset?: () => void }

function countBound(option: string, allowed: number | readonly string[]): Bound {
  if (Array.isArray(allowed)) return boundedLabel(allowed)
  return boundedLabel(wholeNumber(`recordMetrics: ${option}`, allowed as number, { min: 0 }))
}

function tenantBound(tenants: readonly string[] | undefined): Bound | undefined {
  if (tenants === undefined) return undefined
  if (Array.isArray(tenants)) return boundedLabel(['', ...tenants])
  const text = `recordMetrics: tenants must list those that get a label, got ${describe(tenants)}`
  throw new WaybillError('INVALID_OPTION', text)
}

function checkClient(client: PromClient | undefined): PromClient {
  if (typeof client?.Counter === 'function' && typeof client.Gauge === 'function') return client
  const text = "recordMetrics: client must be the module prom-client, as in import * as client from 'prom-client'"
  throw new WaybillError('INVALID_OPTION', text)
}

function checkRegistry(registry: PromRegistry): PromRegistry {
  if (typeof registry?.getSingleMetric === 'function' && typeof registry.registerMetric === 'function') return registry
  throw new WaybillError('INVALID_OPTION', 'recordMetrics: registry must be a Registry of prom-client')
}
