import { describe, expect, test } from 'vitest'
import { FakeClock } from '../../src/testing/index.ts'
import { flowOf, type Held, record, Store, stop } from './support.ts'

/** Handling one of these ends the session, whoever else is in it. */
const ending = (store: Store, ...ids: string[]) => ({
  each: async ({ message }: Held) => {
    if (ids.includes(message.id)) store.lose(new Error('connection closed'))
  },
})

describe('a message that ends the session whenever it is handled', () => {
  test('others go before it, it is charged where they arrive, and it is dead in the end', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).add('poison').addMany(20)
    const flow = flowOf(clock, store, ending(store, 'poison'), { retry: { attempts: 3 } })
    await flow.start()
    await clock.until(() => store.in('done').length === 20, 600_000)
    let more = 0
    await clock.until(() => {
      if (store.in('ready').length < 3) store.add(`n${more++}`)
      return store.in('dead').length === 1
    }, 600_000)
    expect(telemetry.of('message.suspected').map(({ id }) => id)).toEqual(['poison', 'poison', 'poison'])
    expect(telemetry.of('message.dead')).toMatchObject([
      { id: 'poison', reason: expect.stringMatching(/SESSION_LOST/) },
    ])
    expect(store.rows.filter(({ attempts }) => attempts > 0).map((row) => row.message.id)).toEqual(['poison'])
    await stop(clock, flow)
  })

  test('of a key: those behind it wait for it', async () => {
    const clock = new FakeClock()
    const store = new Store(clock).add('k0', 'k').add('k1', 'k').addMany(20)
    let handled = 0
    const each = ({ message }: Held) => {
      if (message.id === 'k1') expect(store.row('k0').state).toBe('done')
      if (message.id === 'k0' && handled++ < 3) store.lose(new Error('connection closed'))
    }
    const flow = flowOf(clock, store, { each })
    await flow.start()
    await clock.until(() => store.in('done').length === 22, 600_000)
    expect(store.of('k1').at(-1)).toBe('done')
    await stop(clock, flow)
  })

  test('that the source has recorded is charged by the source only', async () => {
    const clock = new FakeClock()
    const store = new Store(clock, { afterCrash: true }).add('poison').addMany(20)
    const flow = flowOf(clock, store, ending(store, 'poison'), { retry: { attempts: 3 } })
    await flow.start()
    await clock.until(() => store.in('done').length === 20, 600_000)
    await clock.advance(60_000)
    expect(store.of('poison')).toEqual([])
    await stop(clock, flow)
  })

  test('while every message does, nobody is charged', async () => {
    const clock = new FakeClock()
    const telemetry = record()
    const store = new Store(clock).addMany(5)
    const ids = store.in('ready')
    const flow = flowOf(clock, store, ending(store, ...ids), { retry: { attempts: 2 } })
    await flow.start()
    await clock.advance(600_000)
    expect(telemetry.of('message.suspected')).toEqual([])
    expect(store.rows.every(({ attempts }) => attempts === 0)).toBe(true)
    await stop(clock, flow)
  })
})
