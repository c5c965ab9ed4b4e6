import { describe, expect, test } from 'vitest'
import { FakeClock } from '../../src/testing/index.ts'

describe('fake clock', () => {
  test('sleeps end in the order of their time, and what they set off runs between them', async () => {
    const clock = new FakeClock()
    const seen: string[] = []
    const later = async (name: string, ms: number) => {
      await clock.sleep(ms)
      seen.push(`${name} woke`)
      await Promise.resolve()
      await Promise.resolve()
      seen.push(`${name} went on`)
    }
    later('late', 30)
    later('early', 10)
    later('early twin', 10)
    expect(clock.sleepers).toBe(3)
    await clock.advance(9)
    expect(seen).toEqual([])
    await clock.advance(21)
    expect(seen).toEqual([
      'early woke',
      'early went on',
      'early twin woke',
      'early twin went on',
      'late woke',
      'late went on',
    ])
    expect(clock.sleepers).toBe(0)
  })

  test('a sleep that begins while time passes ends within it', async () => {
    const clock = new FakeClock()
    const times: number[] = []
    const began = clock.monotonic()
    const loop = async () => {
      for (;;) {
        await clock.sleep(100)
        times.push(clock.monotonic() - began)
      }
    }
    loop()
    await clock.advance(350)
    expect(times).toEqual([100, 200, 300])
    expect(clock.monotonic() - began).toBe(350)
    expect(clock.nextIn).toBe(50)
  })

  test('an aborted sleep ends at once and is forgotten', async () => {
    const clock = new FakeClock()
    const stop = new AbortController()
    let awake = false
    const sleeping = clock.sleep(1000, stop.signal).then(() => {
      awake = true
    })
    expect(clock.sleepers).toBe(1)
    stop.abort()
    await sleeping
    expect([awake, clock.sleepers]).toEqual([true, 0])
    await clock.sleep(1000, stop.signal)
  })

  test('now and monotonic go together, a jump moves only now', async () => {
    const clock = new FakeClock('2030-06-01T12:00:00Z')
    const monotonic = clock.monotonic()
    await clock.advance(1500)
    expect(new Date(clock.now()).toISOString()).toBe('2030-06-01T12:00:01.500Z')
    clock.jump(-3_600_000)
    expect(new Date(clock.now()).toISOString()).toBe('2030-06-01T11:00:01.500Z')
    expect(clock.monotonic()).toBe(monotonic + 1500)
  })

  test('a suspended process wakes late', async () => {
    const clock = new FakeClock()
    let awake = false
    clock.sleep(10).then(() => {
      awake = true
    })
    clock.suspend(5000)
    await clock.settle()
    expect(awake).toBe(false)
    await clock.advance(0)
    expect(awake).toBe(true)
  })

  test('a pause of nothing lets others run, and needs no advance', async () => {
    const clock = new FakeClock()
    let turns = 0
    const loop = async () => {
      while (turns < 5) {
        turns++
        await clock.sleep(0)
      }
    }
    const looping = loop()
    expect(turns).toBe(1)
    await looping
    expect(turns).toBe(5)
  })

  test('until goes from sleep to sleep, and says when it is hopeless', async () => {
    const clock = new FakeClock()
    let rounds = 0
    const loop = async () => {
      for (; rounds < 10; rounds++) await clock.sleep(1000)
    }
    const looping = loop()
    await clock.until(() => rounds === 4)
    expect(rounds).toBe(4)
    await expect(clock.until(() => false, 3000)).rejects.toThrow('after 3000 ms')
    await expect(clock.until(() => rounds > 10)).rejects.toThrow('nobody is asleep')
    await looping
  })

  test('time does not go backwards', async () => {
    await expect(new FakeClock().advance(-1)).rejects.toThrow('0 ms or more')
    await expect(new FakeClock().advance(Number.NaN)).rejects.toThrow('0 ms or more')
  })
})
