import { expect, test } from 'vitest'
import { AmbientUnitOfWork, type Begin } from '../../src/store/unit-of-work.ts'

interface Tx {
  readonly of: string
}

function unitOf(name: string): AmbientUnitOfWork<Tx> {
  const begin: Begin<Tx> = async (fn) => await fn({ of: name })
  return new AmbientUnitOfWork(begin)
}

test('units of work of several stores are within each other, and each finds its own', async () => {
  const [a, b, c] = [unitOf('a'), unitOf('b'), unitOf('c')]
  await a.withTransaction(async (outer) => {
    await b.withTransaction(async () => {
      expect(a.current()).toBe(outer)
      expect(b.current()?.of).toBe('b')
      expect(c.current()).toBeUndefined()
      expect(await a.withTransaction(async (tx) => tx)).toBe(outer)
    })
    expect(a.current()).toBe(outer)
    expect(b.current()).toBeUndefined()
  })
  expect(a.current()).toBeUndefined()
})

test('what began in a transaction of another store goes on without it when that has ended', async () => {
  const [a, b] = [unitOf('a'), unitOf('b')]
  let end = () => {}
  const ended = new Promise<void>((resolve) => {
    end = resolve
  })
  let later: Promise<void> = Promise.resolve()
  await a.withTransaction(async () => {
    later = b.withTransaction(async () => {
      await ended
      expect(b.current()?.of).toBe('b')
      expect(a.current()).toBeUndefined()
      expect(() => a.required()).toThrow(/has ended/)
      expect(await a.withTransaction(async (tx) => tx.of)).toBe('a')
    })
  })
  end()
  await later
})

test('a hook runs after the commit of its own store', async () => {
  const [a, b] = [unitOf('a'), unitOf('b')]
  const told: string[] = []
  await a.withTransaction(async () => {
    await b.withTransaction(async () => {
      a.afterCommit(() => told.push('a'))
      b.afterCommit(() => told.push('b'))
    })
    told.push('b has ended')
  })
  expect(told).toEqual(['b', 'b has ended', 'a'])
})
