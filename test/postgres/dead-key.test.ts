import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { number, outboxOn, Placed, type TestOutbox, untilEmpty } from './support.ts'

/** A dead event blocks its key for what comes after its death, too: nothing of the key was there to be held with it. */

let t: TestOutbox
beforeEach(async () => {
  t = await outboxOn()
})
afterEach(() => t.end())

const at = (n: number, key: string) => Placed({ n }, { key })

describe.each(['the same relay', 'another relay'])('behind a dead event, read by %s,', (which) => {
  const dead = async () => {
    const relay = t.relay()
    await t.enqueue(at(1, 'a'))
    t.sink.reject({ where: (message) => number(message) === 1, times: 1 })
    await untilEmpty(relay)
    expect(await t.states()).toEqual({ dead: 1 })
    if (which === 'the same relay') return relay
    await relay.stop()
    return t.relay()
  }

  test('what is enqueued later waits, and goes on in order when that is re-armed', async () => {
    const relay = await dead()
    await t.enqueue([at(2, 'a'), at(2, 'b'), at(3, 'a')])
    await untilEmpty(relay)
    expect(t.arrivals()).toEqual({ b: [2] })
    expect(await t.states()).toEqual({ dead: 1, held: 2, published: 1 })
    await t.outbox.admin.rearm({ states: ['dead'] })
    await relay.stop()
    await untilEmpty(t.relay())
    expect(t.arrivals()).toEqual({ a: [1, 2, 3], b: [2] })
  })

  test('what is scheduled waits too when its time has come', async () => {
    const relay = await dead()
    await t.enqueue(at(2, 'a'), { availableAt: new Date(Date.now() - 1000) })
    await untilEmpty(relay)
    expect(t.arrivals()).toEqual({})
    expect(await t.states()).toEqual({ dead: 1, held: 1 })
  })
})

test('with deadKey: continue it waits for nobody', async () => {
  await t.enqueue(at(1, 'a'))
  t.sink.reject({ where: (message) => number(message) === 1, times: 1 })
  const relay = t.relay({ retry: { deadKey: 'continue' } })
  await untilEmpty(relay)
  await t.enqueue([at(2, 'a'), at(3, 'a')])
  await untilEmpty(relay)
  expect(t.arrivals()).toEqual({ a: [2, 3] })
  expect(await t.states()).toEqual({ dead: 1, published: 2 })
})
