import { expect, test } from 'vitest'
import { eventually } from './wait.ts'

test('says what was waited for, and what was seen last', async () => {
  let looks = 0
  const waiting = eventually('the third', () => ++looks > 1e6, {
    limit: 60,
    seen: () => `${looks > 1 ? 'many' : 'no'} looks`,
  })
  await expect(waiting).rejects.toThrow(/^not within 60 ms: the third; last seen: many looks$/)
})

test('does not wait for a look that hangs', async () => {
  const waiting = eventually('it', () => new Promise<boolean>(() => {}), { limit: 60 })
  await expect(waiting).rejects.toThrow(/not within 60 ms: it; last seen: nothing/)
})

test('is over before its test is, whatever it was told', { timeout: 400 }, async () => {
  await expect(eventually('never', () => false, { limit: 3_600_000 })).rejects.toThrow(/never; last seen: false/)
})

test('returns what was seen', async () => {
  let looks = 0
  expect(await eventually('three looks', () => (++looks === 3 ? 'seen' : undefined))).toBe('seen')
})
