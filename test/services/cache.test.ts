import { readdir, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import { cached, locked } from '../../scripts/services/cache.ts'
import { freePort } from '../../scripts/services/ports.ts'
import { temporaryDir } from './support.ts'

let dir: string

beforeEach(async () => {
  dir = await temporaryDir()
  vi.stubEnv('WAYBILL_CACHE', dir)
})

afterEach(() => {
  vi.unstubAllEnvs()
})

test('is made once, however many ask at the same time', async () => {
  let made = 0
  const build = async (draft: string) => {
    made += 1
    await writeFile(join(draft, 'file'), 'content')
  }
  const found = await Promise.all([1, 2, 3].map(() => cached('thing', build)))
  expect(new Set(found)).toEqual(new Set([join(dir, 'thing')]))
  expect(made).toBe(1)
  expect(await readdir(dir)).toEqual(['thing'])
})

test('what failed half-way leaves nothing, and is made by the next who asks', async () => {
  const broken = async (draft: string) => {
    await writeFile(join(draft, 'half'), '')
    throw new Error('the network is gone')
  }
  await expect(cached('thing', broken)).rejects.toThrow('the network is gone')
  expect(await readdir(dir)).toEqual([])
  await cached('thing', async (draft) => await writeFile(join(draft, 'whole'), ''))
  expect(await readdir(join(dir, 'thing'))).toEqual(['whole'])
})

test('the lock of a process that died is taken over, that of one that lives is waited for', async () => {
  await writeFile(join(dir, 'old.lock'), '')
  const minuteAgo = new Date(Date.now() - 60_000)
  await utimes(join(dir, 'old.lock'), minuteAgo, minuteAgo)
  const order: string[] = []
  const first = locked('old', async () => {
    await new Promise(setImmediate)
    order.push('first')
  })
  await Promise.all([first, first.then(() => locked('old', async () => order.push('second')))])
  expect(order).toEqual(['first', 'second'])
  expect(await readdir(dir)).toEqual([])
})

test('ports are low and never given out twice', async () => {
  const ports = await Promise.all(Array.from({ length: 100 }, freePort))
  expect(new Set(ports).size).toBe(100)
  expect(Math.max(...ports)).toBeLessThan(32_768)
})
