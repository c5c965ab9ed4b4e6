import { expect } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { fromStructured } from '../../../src/cloudevents/index.ts'
import { runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { ioredis, reader, until } from '../support.ts'
import { order, type ServiceSettings } from './service.ts'

const NEVER = new AbortController().signal

export function child(url: string, settings: ServiceSettings, at?: string, timeout = 120_000) {
  const script = bundled(new URL('./child.ts', import.meta.url))
  return runScript({ script, args: [url, JSON.stringify(settings)], timeout, ...(at === undefined ? {} : { at }) })
}

/** Publishes orders `from` to `to`; every `twice`-th of them twice. */
export async function place(url: string, tag: string, from: number, to: number, twice = 0): Promise<void> {
  const streams = redisStreams({ client: ioredis(url) })
  const publisher = streams.publisher({ stream: `{${tag}}:orders` })
  const orders = Array.from({ length: to - from + 1 }, (_, i) => order(from + i))
  for (let i = 0; i < orders.length; i += 1000) {
    const part = orders.slice(i, i + 1000).flatMap((one, at) => (twice > 0 && at % twice === 0 ? [one, one] : [one]))
    for (const { kind } of await publisher.publish(part, NEVER)) expect(kind).toBe('ok')
  }
  await publisher.close!()
  await streams.close()
}

/** Whether every order is handled and acked, and every invoice forwarded. */
export async function settled(url: string, tag: string): Promise<boolean> {
  const client = reader(url)
  const groups = (await client.xinfo('GROUPS', `{${tag}}:orders`).catch(() => [])) as unknown[][]
  const facts = groups.map((flat) =>
    Object.fromEntries(flat.flatMap((v, i) => (i % 2 ? [] : [[String(v), flat[i + 1]]]))),
  )
  const [group] = facts
  if (group === undefined || group['pending'] !== 0) return false
  const [last] = await client.xrevrange(`{${tag}}:orders`, '+', '-', 'COUNT', 1)
  if (last?.[0] !== group['last-delivered-id']) return false
  return (await client.xlen(`{${tag}}:outbox`)) === 0
}

/** Every order 1 to `count` had its effect once, and every invoice arrived: none missing, none that nobody sent. */
export async function verify(url: string, tag: string, count: number): Promise<{ forwarded: number }> {
  await until('all is settled', () => settled(url, tag), 100_000)
  const client = reader(url)
  const times = await client.hgetall(`{${tag}}:times`)
  expect(Object.keys(times).length).toBe(count)
  expect(Object.values(times).filter((n) => n !== '1')).toEqual([])
  expect(await client.get(`{${tag}}:total`)).toBe(String((count * (count + 1)) / 2))
  const entries = await client.xrange(`{${tag}}:invoices`, '-', '+')
  const received = entries.map(([, fields]) => fromStructured(fields[1]!).id)
  const wanted = Array.from({ length: count }, (_, i) => `i-o${i + 1}`)
  expect([...new Set(received)].sort()).toEqual(wanted.sort())
  expect(await client.exists(`{${tag}}:orders:dead:billing`, `{${tag}}:outbox:dead:outbox-forwarder`)).toBe(0)
  return { forwarded: received.length }
}
