import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { event, Reject } from '../../src/index.ts'
import { type LogFields, type LogLevel, logTo } from '../../src/observability/index.ts'
import { type AnySaga, saga } from '../../src/saga/index.ts'
import { inMemory } from './support.ts'

const HOUR = 3_600_000
type Line = LogFields & { level: LogLevel; text: string }
let world: ReturnType<typeof inMemory>
let lines: Line[]
let stop: () => void
beforeEach(() => {
  world = inMemory()
  lines = []
  stop = logTo((level, text, fields) => lines.push({ ...fields, level, text: text.replace('waybill:', '') }))
})
afterEach(async () => {
  stop()
  await world.end()
})

async function failed(one: AnySaga): Promise<string> {
  const runner = world.runner([one])
  const id = await world.db.withTransaction((tx) => runner.client(one).start(tx, {}))
  await runner.start()
  await world.clock.until(() => world.telemetry.of('saga.ended').length > 0, 3 * HOUR)
  expect(await world.load(id)).toMatchObject({ status: 'failed' })
  return id
}

describe('in the log of a service', () => {
  test('an undo that fails is a warning with its saga and step, and the saga that failed for it is an error', async () => {
    const one = saga('order', { version: 1 })
      .step('reserve', () => 1, { undo: () => Promise.reject(new Error('the shelf is locked')), undoBudget: '10s' })
      .step('charge', () => Promise.reject(new Reject('no money')))
    const id = await failed(one)
    const undo = { level: 'warn', text: 'saga.step', type: 'order', id, step: 'reserve', call: 'undo' }
    expect(lines).toContainEqual(expect.objectContaining({ ...undo, error: 'Error: the shelf is locked' }))
    const ended = lines.filter(({ text }) => text === 'saga.ended')
    expect(ended).toMatchObject([{ level: 'error', type: 'order', id, status: 'failed' }])
  })

  test('a compensation that is stuck, because nobody confirms it, is an error with its saga and type', async () => {
    const [Ship, Shipped, Cancel, Cancelled] = ['ship', 'shipped', 'cancel', 'cancelled'].map((type) => event(type))
    const one = saga('order', { version: 1 }).request('ship', {
      ...{ send: () => Ship!({}), reply: Shipped!, undo: () => Cancel!({}), undone: Cancelled!, undoBudget: '10m' },
    })
    const id = await failed(one)
    expect(lines.filter(({ level }) => level === 'error')).toMatchObject([
      { text: 'saga.ended', type: 'order', id, status: 'failed' },
    ])
  })
})
