import { describe, expect, test } from 'vitest'
import { LogBound, type Writer } from '../../src/postgres/log-bound.ts'

const writers = (...names: string[]): Writer[] => names.map((name, i) => ({ name, pid: 100 + i }))

function bound(): LogBound {
  const made = new LogBound()
  made.at('server')
  return made
}

describe('up to which number nothing can appear any more', () => {
  test('to the highest that was seen, when nobody writes', () => {
    const log = bound()
    log.look(10n, [], 0)
    expect(log.safe).toBe(10n)
    expect(log.heldBy()).toBeUndefined()
  })

  test('no further than before, while one that was seen then has not ended', () => {
    const log = bound()
    log.look(5n, [], 0)
    log.look(10n, writers('3/1', '4/1'), 1)
    log.look(10n, writers('3/1'), 2)
    expect(log.safe).toBe(5n)
    log.look(10n, [], 3)
    expect(log.safe).toBe(10n)
  })

  test('one that begins between two looks is waited for by the second, and not by the first', () => {
    const log = bound()
    log.look(10n, writers('3/1'), 0)
    log.look(20n, writers('3/1', '4/1'), 1)
    log.look(20n, writers('4/1'), 2)
    expect(log.safe).toBe(10n)
    log.look(20n, writers('5/1'), 3)
    expect(log.safe).toBe(20n)
  })

  test('under constant writing one look after the other ends, though there is always somebody', () => {
    const log = bound()
    let told = 0n
    for (let n = 1; n <= 500; n++) {
      // Each lives for three looks.
      log.look(BigInt(n), writers(`1/${n}`, `1/${n - 1}`, `1/${n - 2}`), n)
      expect(log.safe >= told).toBe(true)
      told = log.safe
    }
    expect(told).toBe(497n)
  })

  test('one that stays open keeps the number of looks within bounds, and lets go of all of them', () => {
    const log = bound()
    for (let n = 1; n <= 10_000; n++) log.look(BigInt(n), writers('3/1', `4/${n}`), n)
    expect(log.safe).toBe(0n)
    log.look(10_000n, writers('4/10001'), 10_001)
    expect(log.safe).toBeGreaterThan(0n)
    log.look(10_001n, [], 10_002)
    expect(log.safe).toBe(10_001n)
  })

  test('who holds it back is the one that was seen first, with the time', () => {
    const log = bound()
    log.look(10n, [{ name: '3/1', pid: 7 }], 1000)
    log.look(
      20n,
      [
        { name: '3/1', pid: 7 },
        { name: '4/1', pid: 8 },
      ],
      2000,
    )
    expect(log.heldBy()).toMatchObject({ pid: 7, since: 1000 })
    log.look(20n, [{ name: '4/1', pid: 8 }], 3000)
    expect(log.heldBy()).toMatchObject({ pid: 8, since: 2000 })
  })

  test('a prepared transaction that nobody has seen may be any that seems to have ended', () => {
    const log = bound()
    log.look(10n, writers('3/1'), 0)
    // PostgreSQL before 14.1 gives it another name when it is prepared.
    log.look(10n, [{ name: '-1/778', pid: undefined }], 1)
    expect(log.safe).toBe(0n)
    expect(log.heldBy()).toMatchObject({ name: '-1/778', pid: undefined })
    log.look(10n, [], 2)
    expect(log.safe).toBe(10n)
  })

  test('one that is prepared meanwhile has no process any more', () => {
    const log = bound()
    log.look(10n, [{ name: '3/1', pid: 7 }], 1000)
    log.look(10n, [{ name: '3/1', pid: undefined }], 2000)
    expect(log.heldBy()).toEqual({ name: '3/1', pid: undefined, since: 1000 })
  })

  test('a checkpoint ends all looks, and not since when a transaction has been seen', () => {
    const bound = new LogBound()
    bound.at('1 0/A')
    bound.look(5n, [{ name: '3/1', pid: 7 }], 100)
    bound.at('1 0/B')
    expect(bound.heldBy()).toBeUndefined()
    bound.look(6n, [{ name: '3/1', pid: 7 }], 200)
    expect(bound.heldBy()).toMatchObject({ pid: 7, since: 100 })
    bound.at('2 0/B')
    bound.look(7n, [{ name: '3/1', pid: 7 }], 300)
    expect(bound.heldBy()).toMatchObject({ since: 300 })
    expect(bound.safe).toBe(0n)
  })

  test('nothing outlives a server', () => {
    const log = bound()
    log.look(10n, [], 0)
    log.look(20n, writers('3/1'), 1)
    log.at('another')
    expect([log.safe, log.heldBy()]).toEqual([0n, undefined])
    // What was '3/1' there may be '-1/778' here: the look of then must not end.
    log.look(20n, writers('9/9'), 2)
    expect(log.safe).toBe(0n)
  })
})
