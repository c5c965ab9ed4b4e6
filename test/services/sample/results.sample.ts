import { expect, test } from 'vitest'
import { describeWith } from '../../support/services.ts'

test('passes', () => {})

test('fails', () => {
  expect(1).toBe(2)
})

test('skips with a reason', ({ skip }) => skip('needs a full moon'))

describeWith(['postgres'], 'on PostgreSQL', () => {
  test('skips with its suite', () => {})
})

test.todo('is not written yet')
