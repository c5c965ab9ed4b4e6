import { afterEach, expect, test } from 'vitest'
import { type Clock, event, systemClock } from '../../src/core/index.ts'
import { Handled } from '../../src/flow/handled.ts'
import { recordTelemetry } from '../../src/testing/index.ts'

const [Placed, Paid] = [event('order.placed'), event('order.paid')]

const deliveryOf = (of: typeof Placed, tenant?: string) => {
  const message = of({}, tenant === undefined ? {} : { tenant })
  return { message, key: undefined, attempts: 0, size: 1 }
}

/** A clock that stands unless it is moved. */
function stage() {
  let now = 1000
  let asked = 0
  const clock: Clock = {
    ...systemClock,
    monotonic() {
      asked++
      return now
    },
  }
  const handled = new Handled('shop', clock)
  const handle = (took: number, of = Placed, result: 'done' | 'retry' = 'done', tenant?: string) => {
    const began = handled.begin()
    now += took
    handled.report([deliveryOf(of, tenant)], result, undefined, began)
  }
  const pass = (ms: number) => {
    now += ms
  }
  return { handled, handle, pass, asked: () => asked }
}

let stop: (() => void) | undefined
afterEach(() => stop?.())

const told = (telemetry: ReturnType<typeof recordTelemetry>) =>
  telemetry.of('messages.handled').map(({ type, tenant, result, count, took }) => {
    return [type, tenant ?? '', result, count, Math.round(took * 1000) / 1000]
  })

test('those that took next to nothing are told together, with their mean; the others one by one', () => {
  const telemetry = recordTelemetry(['messages.handled'])
  stop = () => telemetry.stop()
  const { handled, handle } = stage()
  handle(0.01)
  handle(0.03)
  handle(5)
  expect(told(telemetry)).toEqual([['order.placed', '', 'done', 1, 5]])
  handled.flush()
  handled.flush()
  expect(told(telemetry).slice(1)).toEqual([['order.placed', '', 'done', 2, 0.02]])
})

test('together are only those of one type, tenant and result', () => {
  const telemetry = recordTelemetry(['messages.handled'])
  stop = () => telemetry.stop()
  const { handled, handle } = stage()
  handle(0.01)
  handle(0.01, Paid)
  handle(0.01, Paid, 'retry')
  handle(0.01, Paid, 'retry', 'acme')
  handled.flush()
  expect(told(telemetry)).toEqual([
    ['order.placed', '', 'done', 1, 0.01],
    ['order.paid', '', 'done', 1, 0.01],
    ['order.paid', '', 'retry', 1, 0.01],
    ['order.paid', 'acme', 'retry', 1, 0.01],
  ])
})

test('time that passes between two belongs to neither', () => {
  const telemetry = recordTelemetry(['messages.handled'])
  stop = () => telemetry.stop()
  const { handled, handle, pass } = stage()
  handle(0.01)
  handled.flush()
  pass(50)
  handle(0.03)
  // Two at once: the second begins when it begins, not when the first did.
  const first = handled.begin()
  pass(2)
  const second = handled.begin()
  expect(second - first).toBeCloseTo(2)
  handled.flush()
  expect(told(telemetry).map(([, , , , took]) => took)).toEqual([0.01, 0.03])
})

test('while nobody listens the clock is not asked', () => {
  const { handled, handle, asked } = stage()
  handle(1)
  handled.flush()
  expect(asked()).toBe(0)
})
