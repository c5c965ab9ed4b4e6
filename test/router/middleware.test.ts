import { describe, expect, it } from 'vitest'
import { type Message, Reject, RetryLater, Unavailable } from '../../src/core/index.ts'
import { type Context, correlation, deadLetter, type Handle, Router, repeat, timeout } from '../../src/router/index.ts'
import { collector, FakeClock, seededRandom } from '../../src/testing/index.ts'
import { consume, context, Placed, raw, record, Sent } from './support.ts'

describe('repeat', () => {
  const options = { backoff: { min: '50ms', max: '1s', jitter: 0, random: seededRandom(1) } } as const

  /** A handler that fails as often as told, behind the middleware. */
  function failing(times: number, error: unknown, given: Parameters<typeof repeat>[0] = {}) {
    const clock = new FakeClock()
    const calls: number[] = []
    const began = clock.monotonic()
    const next: Handle = async () => {
      calls.push(clock.monotonic() - began)
      if (calls.length <= times) throw error
      return undefined
    }
    const handle = repeat({ ...options, clock, ...given }).wrap(next)
    return { clock, calls, run: (changes: Partial<Context> = {}) => Promise.resolve(handle(raw(), context(changes))) }
  }

  it('calls again after growing pauses, until it succeeds', async () => {
    const { clock, calls, run } = failing(2, new Error('deadlock'))
    const running = run()
    await clock.advance(1000)
    await running
    expect(calls).toEqual([0, 50, 150])
  })

  it('gives up after the attempts, with the last error', async () => {
    const { clock, calls, run } = failing(9, new Error('still'), { attempts: 4 })
    const running = run()
    const outcome = expect(running).rejects.toThrow('still')
    await clock.advance(5000)
    await outcome
    expect(calls).toHaveLength(4)
  })

  it('does not repeat what a second try cannot mend, or what says when to come again, or an outage', async () => {
    for (const error of [new Reject('never'), new RetryLater('1m'), new Unavailable('away')]) {
      const { calls, run } = failing(1, error)
      await expect(run()).rejects.toBe(error)
      expect(calls).toHaveLength(1)
    }
  })

  it('stops when the signal aborts', async () => {
    const { clock, calls, run } = failing(5, new Error('no'))
    const controller = new AbortController()
    const running = run({ signal: controller.signal })
    const outcome = expect(running).rejects.toThrow('no')
    await clock.settle()
    controller.abort()
    await outcome
    expect(calls).toHaveLength(1)
  })

  it('has a budget: a general failure is not multiplied', async () => {
    const clock = new FakeClock()
    let calls = 0
    const handle = repeat({ ...options, clock, budget: 20, attempts: 3 }).wrap(async () => {
      calls++
      throw new Error('everything fails')
    })
    for (let i = 0; i < 500; i++) {
      const running = Promise.resolve(handle(raw(), context())).catch(() => {})
      await clock.until(() => true)
      while (clock.sleepers > 0) await clock.advance(1000)
      await running
    }
    // 20 to begin with, and 20 for each hundred messages.
    expect(calls - 500).toBeLessThanOrEqual(20 + 100)
    expect(calls - 500).toBeGreaterThan(80)
  })

  it('refuses what it does not know', () => {
    expect(() => repeat({ atempts: 1 } as never)).toThrow('did you mean "attempts"?')
    expect(() => repeat({ attempts: 0 })).toThrow('at least 1')
    expect(() => repeat({ backoff: { min: '-1s' as never } })).toThrow('is not a duration')
  })
})

describe('timeout', () => {
  it('aborts the handler by its signal and fails the message, which may succeed later', async () => {
    const clock = new FakeClock()
    let reason: unknown
    const router = new Router('r').use(timeout('5s', clock)).on(Placed, async (_, { signal }) => {
      await clock.sleep(60_000, signal)
      reason = signal.reason
    })
    const consuming = consume(router, [raw()])
    await clock.advance(5000)
    const { settlements } = await consuming
    expect(settlements).toMatchObject([{ kind: 'retry', error: { code: 'TIMEOUT' } }])
    expect(reason).toMatchObject({ code: 'TIMEOUT' })
  })

  it('leaves a handler alone that is in time, and no timer behind', async () => {
    const clock = new FakeClock()
    let aborted = false
    const router = new Router('r').use(timeout('5s', clock)).on(Placed, async (_, { signal }) => {
      await clock.sleep(4999)
      aborted = signal.aborted
    })
    const consuming = consume(router, [raw()])
    await clock.advance(4999)
    expect((await consuming).kinds).toEqual(['done'])
    expect(aborted).toBe(false)
    expect(clock.sleepers).toBe(0)
  })

  it('passes on the abort from outside', async () => {
    const clock = new FakeClock()
    const controller = new AbortController()
    const handle = timeout('5s', clock).wrap(async (_, { signal }) => {
      await clock.sleep(60_000, signal)
      throw signal.reason
    })
    const running = Promise.resolve(handle(raw(), context({ signal: controller.signal })))
    const outcome = expect(running).rejects.toThrow('stopping')
    await clock.settle()
    controller.abort(new Error('stopping'))
    await outcome
    expect(() => timeout(-1)).toThrow('is not a duration')
  })

  it('does not stand inside a transaction', () => {
    const tx = { name: 'tx', gives: ['transaction'], wrap: (next: Handle) => next }
    for (const middleware of [timeout('1s'), repeat(), deadLetter({ to: collector() })]) {
      expect(() => new Router('r').use(tx).use(middleware).freeze()).toThrow('must not stand inside "tx"')
    }
  })
})

describe('dead-letter', () => {
  it('sends what can never succeed to its place, with the reason, byte for byte, and counts it as handled', async () => {
    const telemetry = record()
    const place = collector()
    const router = new Router('billing').use(deadLetter({ to: place })).on(Placed, ({ data }) => {
      if (data.order === 'bad') throw new Reject('no such customer')
      if (data.order === 'later') throw new Error('deadlock')
    })
    const spaced = raw(Placed({ order: '1' })).withData('{ "order" :  "bad" }')
    const broken = raw(Placed({ order: '1' }))
      .with({ id: 'broken' })
      .withData('{"order":')
    const later = raw(Placed({ order: 'later' }))
    const { kinds } = await consume(router, [spaced, { message: broken, attempts: 2 }, later])
    expect(kinds).toEqual(['done', 'done', 'retry'])
    expect(place.messages.map(({ data }) => data)).toEqual(['{ "order" :  "bad" }', '{"order":'])
    expect(place.messages[0]!.extensions).toMatchObject({ deadrouter: 'billing', deadattempts: 1 })
    expect(place.messages[0]!.extensions['deadreason']).toContain('no such customer')
    expect(place.messages[1]!.extensions).toMatchObject({ deadattempts: 3 })
    expect(telemetry.of('message.dead')).toHaveLength(2)
  })

  it('takes what no handler knows where the policy says so', async () => {
    const place = collector()
    const router = new Router('r', { unknown: 'dead-letter' }).use(deadLetter({ to: place }))
    expect((await consume(router, [raw(Sent({ order: '1' }))])).kinds).toEqual(['done'])
    expect(place.messages.map(({ type }) => type)).toEqual(['invoice.sent'])
  })

  it('loses nothing when its place does not answer', async () => {
    const place = collector()
    place.fail()
    const router = new Router('r').use(deadLetter({ to: place })).on(Placed, () => {
      throw new Reject('never')
    })
    expect((await consume(router, [raw()])).kinds).toEqual(['retry'])
    expect(() => deadLetter({ too: place } as never)).toThrow('did you mean "to"?')
  })
})

describe('correlation', () => {
  it('outputs say what they came from; ids a handler set itself stay', async () => {
    const out = collector()
    const router = new Router('r')
      .use(correlation())
      .on(Placed, () => [
        Sent({ order: '1' }),
        Sent({ order: '2' }, { extensions: { correlationid: 'mine', causationid: 'too' } }),
      ])
    const first = raw(Placed({ order: '1' }, { id: 'first' }))
    const later = raw(Placed({ order: '2' }, { id: 'later', extensions: { correlationid: 'chain' } }))
    await consume(router, [first, later], { to: out })
    const ids = out.messages.map(({ extensions }: Message) => [extensions['correlationid'], extensions['causationid']])
    expect(ids).toEqual([
      ['first', 'first'],
      ['mine', 'too'],
      ['chain', 'later'],
      ['mine', 'too'],
    ])
  })
})
