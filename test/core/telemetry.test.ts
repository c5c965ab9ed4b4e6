import { channel } from 'node:diagnostics_channel'
import { expect, test } from 'vitest'
import { TELEMETRY_NAMES, TELEMETRY_PREFIX, telemetry, warnOnce } from '../../src/core/index.ts'

test('every name of the table has its channel', () => {
  for (const name of TELEMETRY_NAMES) expect(telemetry[name].name).toBe(name)
})

test('a subscriber hears until it stops, and is seen to listen', () => {
  const heard: unknown[] = []
  const events = telemetry['worker.started']
  expect(events.active).toBe(false)
  const stop = events.subscribe((event) => heard.push(event))
  expect(events.active).toBe(true)
  events.publish({ worker: 'relay' })
  stop()
  events.publish({ worker: 'relay' })
  expect(heard).toEqual([{ worker: 'relay' }])
  expect(events.active).toBe(false)
})

test('a subscriber that throws harms nobody', () => {
  const heard: unknown[] = []
  const stops = [
    telemetry['worker.started'].subscribe(() => {
      throw new Error('subscriber')
    }),
    telemetry['worker.started'].subscribe((event) => heard.push(event)),
  ]
  telemetry['worker.started'].publish({ worker: 'relay' })
  for (const stop of stops) stop()
  expect(heard).toHaveLength(1)
})

test('it is an ordinary diagnostics channel', () => {
  const heard: unknown[] = []
  const listen = (event: unknown) => heard.push(event)
  channel(`${TELEMETRY_PREFIX}task.ran`).subscribe(listen)
  telemetry['task.ran'].publish({ task: 'cleaner', took: 1 })
  channel(`${TELEMETRY_PREFIX}task.ran`).unsubscribe(listen)
  expect(heard).toEqual([{ task: 'cleaner', took: 1 }])
})

test('a warning is given once for each place', () => {
  const heard: string[] = []
  const stop = telemetry.warning.subscribe(({ where }) => heard.push(where))
  for (const where of ['a', 'b', 'a', 'b']) warnOnce(where, 'this can lose data')
  stop()
  expect(heard).toEqual(['a', 'b'])
})
