import { test } from 'vitest'
import { describeWith } from '../support/services.ts'
import { oneTraceThrough } from './traced/through.ts'

describeWith(['postgres', 'rabbitmq'], 'traces', () => {
  test('one trace through three processes and RabbitMQ', { timeout: 120_000 }, () => oneTraceThrough('rabbitmq'))
})
