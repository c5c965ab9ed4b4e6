import type { Labels } from './metric.ts'

/**
 * What was counted since the last scrape. A registry checks and hashes labels with every call, which costs more than all
 * the rest of a relay's work on a message; kept here, it is done once per scrape.
 */
export class CounterTally {
  readonly #labelNames: readonly string[]
  readonly #sums = new Map<string, Sum>()
  /** Most are alike one after the other: comparing costs less than a key. */
  #last: Sum | undefined

  constructor(labelNames: readonly string[]) {
    this.#labelNames = labelNames
  }

  add(labels: Labels, value: number): void {
    let sum = this.#last
    if (sum === undefined || !alike(sum.labels, labels, this.#labelNames)) {
      const key = keyOf(labels, this.#labelNames)
      sum = this.#sums.get(key)
      if (sum === undefined) {
        sum = { labels: only(labels, this.#labelNames), value: 0 }
        this.#sums.set(key, sum)
      }
      this.#last = sum
    }
    sum.value += value
  }

  /** Hands everything over, and is empty. */
  flush(inc: (labels: Labels, value: number) => void): void {
    for (const { labels, value } of this.#sums.values()) inc(labels, value)
    this.#sums.clear()
    this.#last = undefined
  }
}

interface Sum {
  readonly labels: Labels
  value: number
}

interface Series {
  readonly labels: Labels
  /** How many fell into each bucket, and past the last. */
  readonly buckets: number[]
  sum: number
  count: number
}

/** A histogram of our own that a registry of prom-client can hold: it asks `get` when somebody scrapes. */
export class HistogramTally {
  readonly type = 'histogram'
  readonly aggregator = 'sum'
  readonly name: string
  readonly help: string
  readonly #labelNames: readonly string[]
  readonly #bounds: readonly number[]
  readonly #series = new Map<string, Series>()
  #last: Series | undefined

  constructor(name: string, help: string, labelNames: readonly string[], bounds: readonly number[]) {
    this.name = name
    this.help = help
    this.#labelNames = labelNames
    this.#bounds = bounds
  }

  observe(labels: Labels, value: number, times = 1): void {
    const series = this.#seriesOf(labels)
    let at = 0
    while (at < this.#bounds.length && value > this.#bounds[at]!) at++
    series.buckets[at]! += times
    series.sum += value * times
    series.count += times
  }

  #seriesOf(labels: Labels): Series {
    const last = this.#last
    if (last !== undefined && alike(last.labels, labels, this.#labelNames)) return last
    const key = keyOf(labels, this.#labelNames)
    let series = this.#series.get(key)
    if (series === undefined) {
      series = { labels, buckets: new Array<number>(this.#bounds.length + 1).fill(0), sum: 0, count: 0 }
      this.#series.set(key, series)
    }
    this.#last = series
    return series
  }

  async get(): Promise<object> {
    const { name, help, type, aggregator } = this
    return {
      name,
      help,
      type,
      aggregator,
      values: [...this.#series.values()].flatMap((series) => this.#values(series)),
    }
  }

  reset(): void {
    this.#series.clear()
    this.#last = undefined
  }

  #values({ labels, buckets, sum, count }: Series): object[] {
    let below = 0
    const values: object[] = this.#bounds.map((le, i) => {
      below += buckets[i]!
      return { metricName: `${this.name}_bucket`, labels: { le, ...labels }, value: below }
    })
    values.push({ metricName: `${this.name}_bucket`, labels: { le: '+Inf', ...labels }, value: count })
    values.push({ metricName: `${this.name}_sum`, labels, value: sum })
    values.push({ metricName: `${this.name}_count`, labels, value: count })
    return values
  }
}

function alike(known: Labels, labels: Labels, names: readonly string[]): boolean {
  for (let i = 0; i < names.length; i++) if (known[names[i]!] !== labels[names[i]!]) return false
  return true
}

/** Without those that are no labels here: a registry refuses them. */
function only(labels: Labels, names: readonly string[]): Labels {
  return Object.fromEntries(names.map((name) => [name, labels[name]!]))
}

function keyOf(labels: Labels, names: readonly string[]): string {
  if (names.length === 1) return labels[names[0]!]!
  let key = ''
  for (let i = 0; i < names.length; i++) key += `${labels[names[i]!]}\0`
  return key
}
