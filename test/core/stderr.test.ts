import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { limit } from '../../src/core/stderr.ts'

async function stderrOf(...args: string[]): Promise<string> {
  const child = fileURLToPath(new URL('stderr-child.ts', import.meta.url))
  const { stderr } = await promisify(execFile)(process.execPath, ['--import', 'tsx', child, ...args])
  return stderr
}

test('errors go to stderr until a logger is given, without payloads and escapes', async () => {
  const [bare, logged] = await Promise.all([stderrOf(), stderrOf('logged')])
  expect(bare).toMatch(/^waybill:message\.dead flow=outbox .*reason="Reject \[REJECTED\]: card … \[31m is refused"/m)
  expect(bare).not.toContain('4111')
  expect(bare).not.toContain('\u001b')
  expect(logged).toBe('')
})

test('a process without a worker is heard too: one with a store, one with a bus', async () => {
  const [store, bus] = await Promise.all([stderrOf('store'), stderrOf('bus')])
  expect(store).toMatch(/^waybill:warning where=afterCommit message="a hook failed: Reject \[REJECTED\]: card /)
  expect(bus).toMatch(/^waybill:bus\.subscriber_failed type=card\.paid .*error="Reject \[REJECTED\]: card …/)
})

test.each(['rabbitmq', 'kafka', 'nats', 'redis'])('so is one that only publishes: %s', async (broker) => {
  expect(await stderrOf(broker)).toMatch(/^waybill:warning where=\S+ message="not as it should be"/m)
})

test('a storm of errors is cut short, and how much was left out is told', () => {
  const lines: string[] = []
  let now = 0
  const write = limit(
    (line) => lines.push(line),
    () => now,
  )
  for (let i = 0; i < 1000; i++) write(`line ${i}`)
  expect(lines).toHaveLength(20)
  now = 10_000
  write('later')
  expect(lines.slice(20)).toEqual(['waybill:left_out lines=980', 'later'])
})
