import { expect, test } from 'vitest'
import { encodeData } from '../../src/core/index.ts'
import { Enricher, prepare } from '../../src/projection/prepare.ts'
import { FakeClock } from '../../src/testing/index.ts'
import { created, orders } from './shop.ts'

const settings = { concurrency: 2, timeout: 5000, giveUp: 30_000 }
const signal = new AbortController().signal

/** Events of these buyers, each of a key of its own. */
async function events(names: (buyer: string) => string | Promise<string>, ...buyers: string[]) {
  const list = buyers.map((buyerId, i) => {
    const message = encodeData(created(`o${i}`, { buyerId }))
    return { position: BigInt(i + 1), key: message.key, type: message.type, message, unreadable: undefined }
  })
  return prepare(orders(names), list)
}

test('one that fails while others do not is tried again, and given up after 30 s', async () => {
  const clock = new FakeClock()
  const asked: string[] = []
  const prepared = await events(
    (buyer) => {
      asked.push(buyer)
      if (buyer === 'bad') throw new Error('no such user')
      return buyer
    },
    'good',
    'bad',
  )
  const enricher = new Enricher(settings, clock)
  expect(await enricher.enrich(prepared, signal)).toMatchObject({ message: 'no such user' })
  await clock.advance(29_000)
  expect(await enricher.enrich(prepared, signal)).toMatchObject({ message: 'no such user' })
  expect(prepared.map(({ failure }) => failure)).toEqual([undefined, undefined])
  await clock.advance(1000)
  expect(await enricher.enrich(prepared, signal)).toBeUndefined()
  expect(prepared.map(({ failure }) => failure?.message)).toEqual([undefined, 'no such user'])
  expect(prepared[0]!.found).toBe('good')
  // What was found is not asked for again.
  expect(asked).toEqual(['good', 'bad', 'bad', 'bad'])
})

test('while all fail nobody is given up; when they answer, all go on', async () => {
  const clock = new FakeClock()
  let down = true
  const prepared = await events(
    (buyer) => {
      if (down) throw new Error('503')
      return buyer
    },
    'a',
    'b',
    'c',
  )
  const enricher = new Enricher(settings, clock)
  for (let n = 0; n < 5; n++) {
    expect(await enricher.enrich(prepared, signal)).toMatchObject({ message: '503' })
    await clock.advance(60_000)
  }
  down = false
  expect(await enricher.enrich(prepared, signal)).toBeUndefined()
  expect(prepared.map(({ found, failure }) => [found, failure])).toEqual([
    ['a', undefined],
    ['b', undefined],
    ['c', undefined],
  ])
})

test('one that does not answer is too late after 5 s, and no more than the bound are asked at once', async () => {
  const clock = new FakeClock()
  let [now, most] = [0, 0]
  const prepared = await events(
    async (buyer) => {
      most = Math.max(most, ++now)
      if (buyer === 'silent') await new Promise(() => {})
      now--
      return buyer
    },
    'a',
    'silent',
    'b',
    'c',
  )
  const answer = new Enricher(settings, clock).enrich(prepared, signal)
  let obstacle: unknown
  answer.then((error) => {
    obstacle = error
  })
  await clock.until(() => obstacle !== undefined, 10_000)
  expect(obstacle).toMatchObject({ code: 'TIMEOUT' })
  expect(most).toBeLessThanOrEqual(2)
  expect(prepared.filter(({ asks }) => asks)).toHaveLength(1)
})
