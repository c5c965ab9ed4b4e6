import { Redis } from 'ioredis'
import { redisStreams } from 'waybill/redis-streams'
import { type BareEvent, type BarePublisher, type BrokerBench, ROOM, type Stage } from './broker.ts'
import { bareEvents, inParts } from './messages.ts'

const STREAM = 'orders'
const READ = 1000

function textOf({ id, source, type, time, version, key, data }: BareEvent): string {
  return `{"specversion":"1.0","id":"${id}","source":"${source}","type":"${type}","time":"${time}","eventversion":${version},"partitionkey":"${key}","data":${data}}`
}

async function barePublisher(url: string): Promise<BarePublisher> {
  const client = new Redis(url)
  return {
    async publish(events) {
      const pipeline = client.pipeline()
      for (const event of events) pipeline.xadd(STREAM, '*', 'event', textOf(event))
      for (const [error] of (await pipeline.exec())!) if (error) throw error
    },
    close: async () => client.disconnect(),
  }
}

type Entries = [id: string, fields: string[]][]

/** Reads the next while the last are acknowledged. */
async function bareConsume(url: string, group: string, onEvent: () => void): Promise<() => Promise<void>> {
  const client = new Redis(url)
  let stopping = false
  const loop = async () => {
    let acked: Promise<unknown> = Promise.resolve()
    while (!stopping) {
      const args = ['COUNT', READ, 'BLOCK', 100, 'STREAMS', STREAM, '>'] as const
      const reply = (await client.xreadgroup('GROUP', group, 'bare', ...args)) as [string, Entries][] | null
      await acked
      const entries = reply?.[0]?.[1] ?? []
      for (const [, [, text]] of entries) {
        if (typeof JSON.parse(text!).data.orderId !== 'string') throw new Error('not an order')
        onEvent()
      }
      if (entries.length > 0) acked = client.xack(STREAM, group, ...entries.map(([id]) => id))
    }
    await acked
  }
  const looping = loop()
  return async () => {
    stopping = true
    await looping
    client.disconnect()
  }
}

async function stage(url: string): Promise<Stage> {
  const client = new Redis(url)
  const bare = await barePublisher(url)
  const count = () => client.xlen(STREAM)
  return {
    empty: () => client.del(STREAM),
    count,
    async fill(group, events) {
      if ((await count()) !== events) {
        await client.del(STREAM)
        await inParts(bareEvents(events), { size: 1000, at: 2 }, (part) => bare.publish(part))
      }
      await client.xgroup('CREATE', STREAM, group, '0')
    },
    async left(group) {
      const [pending] = (await client.xpending(STREAM, group)) as [number]
      await client.xgroup('DESTROY', STREAM, group)
      return pending
    },
    async close() {
      await bare.close()
      client.disconnect()
    },
  }
}

export const redisStreamsBench: BrokerBench = {
  name: 'redis',
  server: 'redis',
  how: {
    'ours publish': 'XADD, auto-pipelined; append-only file, fsync each second',
    'bare publish': 'ioredis pipelines of 1000 XADD, 2 at once',
    'ours consume': `reads of 500, batched XACK, ${ROOM.concurrency} at once`,
    'bare consume': `XREADGROUP of ${READ}, one XACK for each, beside the next read`,
  },
  stage,
  publisher: (url) => redisStreams({ client: new Redis(url, { lazyConnect: true }) }).publisher({ stream: STREAM }),
  barePublisher,
  source(url, group, tuned) {
    const broker = redisStreams({ client: new Redis(url, { lazyConnect: true }) })
    const source = broker.source({ stream: STREAM, group, ...(tuned ? { batch: READ / 2 } : {}) })
    return { source, consume: tuned ? ROOM : {}, close: () => broker.close() }
  },
  bareConsume,
}
