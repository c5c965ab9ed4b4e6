import { test } from 'vitest'
import { describeWith } from '../support/services.ts'
import { oneTraceThrough } from './traced/through.ts'

for (const broker of ['kafka', 'nats', 'redis', 'http'] as const) {
  const needs = broker === 'http' ? ['postgres'] : ['postgres', broker]
  describeWith(needs, 'traces', () => {
    test(`one trace through three processes and ${broker}`, { timeout: 120_000 }, () => oneTraceThrough(broker))
  })
}
