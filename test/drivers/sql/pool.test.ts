import { expect, test } from 'vitest'
import { telemetry } from '../../../src/core/index.ts'
import { fromPool } from '../../../src/drivers/sql/pool.ts'

test('a pool without a free connection says so while it is waited for, and not for each who waits', async () => {
  const warnings: { where: string; message: string }[] = []
  const told = new Promise<void>((resolve) => {
    telemetry.warning.subscribe((warning) => {
      warnings.push(warning)
      resolve()
    })
  })
  const end = new AbortController()
  const limits = { ms: 60_000, signal: end.signal, patience: 1 }
  const state = () => ({ name: 'the pg Pool', size: 4, taken: 4 })
  const wait = () => fromPool(new Promise<never>(() => {}), limits, state, () => {}).catch((error) => error)
  const waiting = [wait(), wait(), wait()]
  await told
  // Whatever else was due has been.
  await new Promise((resolve) => setTimeout(resolve, 5))
  end.abort()
  await Promise.all(waiting)
  expect(warnings).toEqual([
    { where: 'pool', message: expect.stringMatching(/all 4 connections \(max: 4\) are in use/) },
  ])
})
