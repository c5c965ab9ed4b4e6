import { expect, test } from 'vitest'
import { withoutData } from '../../src/core/without-data.ts'

const CARD = '4111-1111-1111-1234'

test('a text that repeats the beginning of a value takes no longer for it, and fails at no length', () => {
  const began = performance.now()
  for (const times of [20_000, 200_000]) {
    const { message } = withoutData(new Error(`${CARD.slice(0, 9)} `.repeat(times)), { data: { card: CARD } })
    expect(message).not.toContain(CARD.slice(0, 8))
    expect(message).toMatch(/^… … /)
  }
  // It took five seconds for the first, and all memory for the second.
  expect(performance.now() - began).toBeLessThan(3000)
})

test('of a long text nothing is kept that may be the beginning of a value or of a password', () => {
  for (let before = 9970; before < 10_010; before++) {
    for (const secret of [CARD, 'pin-9', 'amqp://app:hunter2@host', 'password=hunter2']) {
      const data = { card: CARD, pin: 'pin-9' }
      const { message } = withoutData(new Error(`${'y '.repeat(before / 2)}${secret} and ${'z'.repeat(50_000)}`), {
        data,
      })
      expect(message.length).toBeLessThan(10_010)
      expect(message, `${before} ${secret}`).not.toMatch(/4|pin|(?:amqp|password)\S*…$/)
    }
  }
})

test('data that cannot be read, or holds itself, ends: nothing of the text is kept, or what is no value', () => {
  const hostile = {
    get card(): string {
      throw new Error('no')
    },
  }
  expect(withoutData(new Error(`no ${CARD}`), { data: hostile }).message).toBe('…')
  const circle: Record<string, unknown> = { card: CARD }
  Object.assign(circle, { a: circle, b: [circle], c: { circle } })
  expect(withoutData(new Error(`no ${CARD}`), { data: circle }).message).toBe('no …')
})

test.each([
  ['an address', 'Rosenstrasse 14, Berlin'],
  ['a mail', 'jonathan.smith@example.com'],
  ['a moment', new Date('2020-01-01T10:20:30.000Z')],
  ['quotes behind eight letters', 'so-called "friends"'],
  ['what writes itself as text in JSON', new URL('https://example.com/tickets/7?pin=9914')],
])('of %s nothing is left because a part of it is spelled alike in a URL or in JSON', (_, value) => {
  const text = value instanceof Date ? value.toISOString() : String(value)
  const other = 'Rosenstrasse 15'
  const data = { value, other, short: 'Rose' }
  for (const one of [text, encodeURIComponent(text), other]) {
    expect(withoutData(new Error(`no (${one}) here`), { data }).message).toBe('no (…) here')
  }
  expect(withoutData(new Error(`no ${text.slice(0, 12)}`), { data }).message).toBe('no …')
})
