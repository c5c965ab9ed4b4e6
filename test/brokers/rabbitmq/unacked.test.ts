import { describe, expect, test } from 'vitest'
import { Unacked } from '../../../src/brokers/rabbitmq/unacked.ts'
import type { AmqpDelivery } from '../../../src/drivers/amqp.ts'

const delivery = (deliveryTag: number) => ({ fields: { deliveryTag } }) as AmqpDelivery

/** A channel that does as the server does: it knows what is unacked, and refuses what is not. */
function channelWith(count: number, first = 1) {
  const said: string[] = []
  const open = new Set(Array.from({ length: count }, (_, i) => first + i))
  const settle = (word: string, { fields: { deliveryTag } }: AmqpDelivery, allUpTo = false) => {
    said.push(`${word} ${deliveryTag}${allUpTo ? ' and before' : ''}`)
    if (!open.has(deliveryTag)) throw new Error(`PRECONDITION_FAILED - unknown delivery tag ${deliveryTag}`)
    for (const tag of [...open]) if (tag === deliveryTag || (allUpTo && tag < deliveryTag)) open.delete(tag)
  }
  const channel = {
    ack: (raw: AmqpDelivery, allUpTo?: boolean) => settle('ack', raw, allUpTo),
    nack: (raw: AmqpDelivery) => settle('nack', raw),
  }
  const unacked = new Unacked(channel as never)
  const all = [...open].map(delivery)
  for (const raw of all) unacked.add(raw)
  return { said, open, unacked, all }
}

describe('what a channel has given', () => {
  test('the oldest are acked with one word, the others one by one, and nobody else is taken along', () => {
    const { said, open, unacked, all } = channelWith(6)
    unacked.ack([all[4]!, all[1]!, all[0]!])
    expect(said).toEqual(['ack 2 and before', 'ack 5'])
    unacked.ack([all[3]!, all[5]!])
    expect([...open]).toEqual([3])
    expect([...unacked]).toEqual([all[2]])
    unacked.ack([all[2]!, all[2]!, all[0]!])
    expect(said.slice(2)).toEqual(['ack 4', 'ack 6', 'ack 3'])
  })

  test('of another channel it knows nothing, whatever its tag, and what went back is not acked', () => {
    const { said, unacked, all } = channelWith(3, 7)
    unacked.ack([delivery(7), delivery(1), delivery(99)])
    unacked.requeue(all[0]!)
    unacked.requeue(all[0]!)
    unacked.ack(all)
    expect(said).toEqual(['nack 7', 'ack 9 and before'])
    expect(unacked.has(all[0]!)).toBe(false)
  })

  test('through many batches, out of order, each is told once', () => {
    const count = 5000
    const { open, unacked, all } = channelWith(count)
    let seed = 7
    const waiting = [...all]
    while (waiting.length > 0) {
      seed = (seed * 48_271) % 2_147_483_647
      const from = seed % Math.min(waiting.length, 40)
      const batch = waiting.splice(from, 1 + (seed % 30))
      unacked.ack(batch)
      expect(batch.some((raw) => open.has(raw.fields.deliveryTag) || unacked.has(raw))).toBe(false)
      expect(open.size).toBe(waiting.length)
    }
    unacked.add(delivery(count + 1))
    expect([...unacked]).toHaveLength(1)
  })

  test('after the channel has ended nothing is said', () => {
    const { said, unacked, all } = channelWith(2)
    unacked.end()
    unacked.ack(all)
    unacked.requeue(all[0]!)
    expect([said, [...unacked]]).toEqual([[], all])
  })
})
