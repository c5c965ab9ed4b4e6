import { describe, expect, test } from 'vitest'
import { Message, type RawMessage, Reject } from '../../src/core/index.ts'
import { DONE, Flow, fromIterable, generate, OK, type Publisher, RELEASE, sink } from '../../src/flow/index.ts'

import { FakeClock, recordTelemetry } from '../../src/testing/index.ts'

const { signal } = new AbortController()

function message(n: number | string, key?: string): RawMessage {
  return new Message({ id: String(n), source: '/s', type: 't', extensions: key ? { partitionkey: key } : {} }, '{}')
}

function messages(count: number): RawMessage[] {
  return Array.from({ length: count }, (_, i) => message(i))
}

function ids(deliveries: readonly { message: Message }[]): string {
  return deliveries.map((delivery) => delivery.message.id).join(' ')
}

function into(to: Publisher, size = 100) {
  return {
    batch: (all: readonly { message: RawMessage }[], stop: AbortSignal) =>
      to.publish(
        all.map((one) => one.message),
        stop,
      ),
    size,
    ordered: false,
  }
}

describe('generate', () => {
  test('is asked for what there is room for; more than that is kept', async () => {
    const asked: number[] = []
    const source = generate('numbers', ({ count }) => {
      asked.push(count)
      return messages(5)
    })
    const session = (await source.open(signal))!
    expect(ids(await session.take({ count: 3, bytes: 1e6 }, signal))).toBe('0 1 2')
    expect(ids(await session.take({ count: 3, bytes: 1e6 }, signal))).toBe('3 4')
    expect(asked).toEqual([3])
    expect(ids(await session.take({ count: 3, bytes: 1 }, signal))).toBe('0')
  })

  test('what is given back comes first, in its old order, in another session too', async () => {
    const all = [messages(6)]
    const source = generate('numbers', () => all.shift())
    const first = (await source.open(signal))!
    const taken = await first.take({ count: 4, bytes: 1e6 }, signal)
    await first.settle([
      [taken[3]!, RELEASE],
      [taken[0]!, DONE],
      [taken[1]!, { kind: 'retry', after: 10, charged: true, error: undefined }],
    ])
    await first.close()
    expect(await first.settle([[taken[2]!, DONE]])).toBe(1)
    const again = await (await source.open(signal))!.take({ count: 10, bytes: 1e6 }, signal)
    expect(ids(again)).toBe('1 2 3 4 5')
    expect(again.map(({ attempts }) => attempts)).toEqual([1, 0, 0, 0, 0])
  })

  test('one that fails is asked again after longer and longer pauses', async () => {
    const clock = new FakeClock()
    const recorder = recordTelemetry(['flow.take_failed'])
    const calls: number[] = []
    const source = generate<RawMessage>('failing', async () => {
      calls.push(clock.monotonic())
      if (calls.length < 6) throw new Error('the server is away')
      return calls.length === 6 ? [message('at last')] : undefined
    })
    const seen: string[] = []
    const step = { each: ({ message: { id } }: { message: RawMessage }) => seen.push(id) }
    const flow = new Flow({ name: 'f', from: source, step, clock })
    await flow.start()
    await clock.until(() => seen.length > 0)
    await flow.stop()
    recorder.stop()
    expect(seen).toEqual(['at last'])
    const pauses = calls.slice(1, 6).map((at, i) => at - calls[i]!)
    for (const [i, pause] of pauses.entries()) expect(pause).toBeGreaterThanOrEqual(200 * 2 ** i)
    expect(recorder.of('flow.take_failed').length).toBe(5)
  })

  test('a take that is no longer wanted returns, and what comes late is kept', async () => {
    let answer = (_: RawMessage[]) => {}
    const source = generate<RawMessage>('late', () => new Promise((resolve) => (answer = resolve)))
    const session = (await source.open(signal))!
    const stop = new AbortController()
    const taking = session.take({ count: 1, bytes: 1 }, stop.signal)
    stop.abort()
    expect(await taking).toEqual([])
    answer([message('late')])
    expect(ids(await session.take({ count: 1, bytes: 1 }, signal))).toBe('late')
  })

  test('what is dead is kept with its reason', async () => {
    const all = [[message('bad')]]
    const source = generate('g', () => all.shift())
    const step = {
      each: () => {
        throw new Reject('the total is negative')
      },
    }
    const flow = new Flow({ name: 'f', from: source, step })
    await flow.runOnce()
    await flow.stop()
    expect(source.dead).toMatchObject([{ attempts: 1, reason: 'Reject [REJECTED]: the total is negative' }])
    expect(source.dead[0]!.message.id).toBe('bad')
  })
})

describe('from an iterable', () => {
  test('a flow moves all of it to a sink, and the end is told', async () => {
    const seen: string[] = []
    const to = sink((batch) => {
      seen.push(...batch.map(({ id }) => id))
    })
    const source = fromIterable('numbers', messages(1000))
    const flow = new Flow({ name: 'f', from: source, step: into(to) })
    await flow.start()
    await source.ended
    await flow.stop()
    expect(seen.length).toBe(1000)
    expect(new Set(seen).size).toBe(1000)
  })

  test('no more is read than was asked for', async () => {
    let read = 0
    function* endless() {
      for (;;) yield message(read++)
    }
    async function* endlessAsync() {
      for (;;) yield message(read++)
    }
    for (const from of [endless(), endlessAsync()]) {
      read = 0
      const session = (await fromIterable('endless', from).open(signal))!
      expect((await session.take({ count: 7, bytes: 1e6 }, signal)).length).toBe(7)
      await new Promise((resolve) => setImmediate(resolve))
      expect(read).toBe(7)
    }
  })

  test('what is there is given without waiting for the rest, and what comes wakes whoever waits', async () => {
    const clock = new FakeClock()
    async function* slow() {
      yield message('a')
      yield message('b')
      await clock.sleep(1000)
      yield message('c')
    }
    const source = fromIterable('slow', slow(), { clock })
    const session = (await source.open(signal))!
    const taken = [...(await session.take({ count: 10, bytes: 1e6 }, signal))]
    expect(ids(taken)).toBe('a b')
    expect(await session.take({ count: 10, bytes: 1e6 }, signal)).toEqual([])
    const waiting = session.wait!(60_000, signal)
    await clock.advance(1000)
    await waiting
    taken.push(...(await session.take({ count: 10, bytes: 1e6 }, signal)))
    expect(ids(taken)).toBe('a b c')
    let ended = false
    source.ended.then(() => {
      ended = true
    })
    await session.settle([[taken[0]!, DONE]])
    await session.settle([[taken[1]!, RELEASE]])
    await clock.settle()
    expect(ended).toBe(false)
    const [again] = await session.take({ count: 10, bytes: 1e6 }, signal)
    await session.settle([again!, taken[2]!].map((delivery) => [delivery, DONE]))
    await source.ended
  })

  test('one that throws ends there: what it gave is given, then its error', async () => {
    function* broken() {
      yield message('a')
      throw new Error('the file is cut off')
    }
    const source = fromIterable('broken', broken())
    const session = (await source.open(signal))!
    const taken = await session.take({ count: 10, bytes: 1e6 }, signal)
    expect(ids(taken)).toBe('a')
    await session.settle([[taken[0]!, DONE]])
    await expect(session.take({ count: 10, bytes: 1e6 }, signal)).rejects.toThrow('cut off')
    await expect(session.take({ count: 10, bytes: 1e6 }, signal)).rejects.toThrow('cut off')
    await expect(source.ended).rejects.toThrow('cut off')
  })

  test('an empty one ends at the first take', async () => {
    const source = fromIterable('empty', [])
    const session = (await source.open(signal))!
    expect(await session.take({ count: 1, bytes: 1 }, signal)).toEqual([])
    await source.ended
  })

  test('what cannot be iterated is refused', () => {
    expect(() => fromIterable('x', 7 as never)).toThrow('cannot be iterated')
    expect(() => fromIterable('x', undefined as never)).toThrow('cannot be iterated')
    expect(() => fromIterable('x', [], { clok: 1 } as never)).toThrow('did you mean "clock"?')
  })

  test('what is no message is passed over, told, and costs the others nothing', async () => {
    const clock = new FakeClock()
    const telemetry = recordTelemetry(['warning'])
    const odd = [null, undefined, 'text', { id: 'plain', type: 'thing' }] as unknown as RawMessage[]
    const source = fromIterable('odd', [message('a'), ...odd, message('b')])
    const seen: string[] = []
    const each = ({ message: { id } }: { message: RawMessage }) => void seen.push(id)
    const flow = new Flow({ name: 'f', from: source, step: { each }, clock })
    await flow.start()
    await source.ended
    expect(seen).toEqual(['a', 'b'])
    expect(telemetry.of('warning').map(({ where }) => where)).toContain('pipe odd')
    telemetry.stop()
    await flow.stop()
  })

  test('retries stay in front of their key, and nothing is lost when the flow stops in between', async () => {
    const clock = new FakeClock()
    const source = fromIterable(
      'keyed',
      ['a1', 'a2', 'b1', 'a3'].map((id) => message(id, id[0])),
    )
    const seen: string[] = []
    let failing = true
    const step = {
      each: ({ message: { id } }: { message: RawMessage }) => {
        if (id === 'a1' && failing) throw new Error('not yet')
        seen.push(id)
      },
    }
    const first = new Flow({ name: 'f', from: source, step, clock })
    await first.start()
    await clock.advance(10)
    expect(seen).toEqual(['b1'])
    await first.stop()
    failing = false
    const second = new Flow({ name: 'f', from: source, step, clock })
    await second.start()
    await clock.until(() => seen.length === 4)
    await source.ended
    await second.stop()
    expect(seen).toEqual(['b1', 'a1', 'a2', 'a3'])
  })
})

describe('sink', () => {
  const kinds = (outcomes: readonly { kind: string }[]) => outcomes.map(({ kind }) => kind).join(' ')

  test('all of it has arrived when the function returns nothing', async () => {
    expect(kinds(await sink(() => {}).publish(messages(3), signal))).toBe('ok ok ok')
    expect(kinds(await sink(async () => {}).publish(messages(2), signal))).toBe('ok ok')
  })

  test('outcomes are passed on, one each', async () => {
    const mixed = sink((batch) => batch.map((_, i) => (i === 1 ? { kind: 'failed', error: new Error('no') } : OK)))
    expect(kinds(await mixed.publish(messages(3), signal))).toBe('ok failed ok')
    const short = sink(() => [OK])
    await expect(short.publish(messages(2), signal)).rejects.toMatchObject({ code: 'BAD_PUBLISHER' })
    await expect(sink(() => []).publish(messages(1), signal)).rejects.toMatchObject({ code: 'BAD_PUBLISHER' })
  })

  test('a throw for one alone is its own; for several nobody is blamed', async () => {
    const rejects = sink(() => {
      throw new Reject('never')
    })
    expect(kinds(await rejects.publish(messages(1), signal))).toBe('rejected')
    await expect(rejects.publish(messages(2), signal)).rejects.toThrow('never')
  })

  test('a flow finds the one among many that a sink cannot take', async () => {
    const clock = new FakeClock()
    const arrived: string[] = []
    const to = sink(async (batch) => {
      if (batch.some(({ id }) => id === '13')) throw new Reject('unlucky')
      arrived.push(...batch.map(({ id }) => id))
    })
    const source = fromIterable('numbers', messages(30), { clock })
    const flow = new Flow({ name: 'f', from: source, step: into(to, 10), clock })
    await flow.start()
    await clock.until(() => arrived.length === 29 && source.dead.length === 1)
    await source.ended
    await flow.stop()
    expect(source.dead[0]!.message.id).toBe('13')
    expect(arrived).not.toContain('13')
  })

  test('takes a name and says whether it keeps order', () => {
    const named = sink(() => {}, { name: 'files', ordered: true })
    expect([named.name, named.features.ordered]).toEqual(['files', true])
    expect(() => sink(() => {}, { orderd: true } as never)).toThrow('did you mean "ordered"?')
  })
})
