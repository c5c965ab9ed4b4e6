import { describe, expect, test } from 'vitest'
import { chart, charts, drawn } from '../../scripts/pictures/charts.ts'

/** Lines as the benchmarks print them, one that is shown and one that is not. */
const LINES: Record<string, { shown: object[]; left: object[]; text: string[] }> = {
  relay: {
    shown: [
      { situation: 'quiet', contestant: 'owner', 'events/s': 127_000 },
      { situation: 'quiet', contestant: 'graphile', 'events/s': 48_000 },
    ],
    left: [
      { situation: 'beside writers', contestant: 'owner', 'events/s': 105_000 },
      { situation: 'quiet', contestant: 'owner defaults', 'events/s': 90_000 },
    ],
    text: ['Waybill, removes', '127,000/s', 'graphile-worker, tuned', '48,000/s'],
  },
  enqueue: {
    shown: [{ transaction: 'with event', 'per second': 3100 }],
    left: [{ transaction: 'with event, no wake-up', 'per second': 3200 }],
    text: ['Waybill: and an event', '3,100/s'],
  },
  growth: {
    shown: [
      { pending: '10k', rows: 10_000, 'events/s': 83_000, 'against 10k': 1, rounds: 3 },
      // With --quick it is no million.
      { pending: '1m', rows: 100_000, 'events/s': 81_000, 'against 10k': 0.98, rounds: 3 },
      { pending: '100000 dead first', rows: 110_000, 'events/s': 80_000, 'against 10k': 0.97, rounds: 3 },
    ],
    left: [{ pending: '1m, drained', rows: 1_000_000, 'events/s': 84_000 }],
    text: ['10,000 pending', '83,000/s', '100,000 pending', '81,000/s', 'behind 100,000 dead', '80,000/s'],
  },
  latency: {
    shown: [{ 'events at': '100/s', 'p50 ms': 2.1, 'p99 ms': 4.5, 'max ms': 9, events: 2000 }],
    left: [],
    text: ['100/s', '4.5 ms'],
  },
  brokers: {
    shown: [
      { broker: 'rabbitmq', what: 'publish', contestant: 'ours', 'per s': 14_000, '× bare': 0.98 },
      { broker: 'kafka', what: 'consume', contestant: 'ours', 'per s': 89_000, '× bare': 0.8 },
    ],
    left: [{ broker: 'rabbitmq', what: 'publish', contestant: 'bare', 'per s': 14_300, '× bare': 1 }],
    text: ['to RabbitMQ', '0.98', 'from Kafka', '0.8'],
  },
  saga: {
    shown: [
      { what: '32 in flight', contestant: 'waybill', 'sagas/s': 2900 },
      { what: '32 in flight', contestant: 'DBOS', 'sagas/s': 600 },
    ],
    left: [
      { what: '1 in flight', contestant: 'waybill', 'sagas/s': 700 },
      { what: 'reading, 100 waiting', 'took ms': 3 },
    ],
    text: ['Waybill', '2,900/s', 'DBOS', '600/s'],
  },
  projection: {
    shown: [
      { what: 'batches of 500', contestant: 'waybill', 'events/s': 41_000 },
      { what: 'batches of 500', contestant: 'emmett', 'events/s': 900 },
    ],
    left: [
      { what: 'waitFor, 100 writes/s, its own process', 'p99 ms': 7 },
      { what: 'enqueue', contestant: 'no log', 'server µs': 50 },
    ],
    text: ['Waybill', '41,000/s', 'Emmett', '900/s'],
  },
}

describe('charts', () => {
  test('there are lines for each', () => {
    expect(Object.keys(LINES)).toEqual(Object.keys(charts))
  })

  test.each(Object.entries(LINES))('of %s show what is compared, and nothing else', (name, { shown, left, text }) => {
    const results = [...left, ...shown] as Record<string, string | number>[]
    const svg = drawn(name, { results })
    expect(svg.match(/<rect class="(ours|bar)"/g)).toHaveLength(shown.length)
    expect(svg).toContain('class="ours"')
    for (const part of text) expect(svg).toContain(`>${part}<`)
    expect(svg).not.toMatch(/NaN|undefined|Infinity/)
  })

  test('one whose figures nobody has measured is left out', () => {
    expect(chart('relay')).toContain('</svg>')
    expect(chart('growth', () => '/no/such/file.json')).toBeUndefined()
  })

  test('figures of which nothing can be shown are refused', () => {
    expect(() => drawn('relay', { results: [] })).toThrow('no line that the chart shows')
  })
})
