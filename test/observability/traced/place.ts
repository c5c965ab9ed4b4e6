/** Every broker, opened by what a JOB says: the processes of a trace share one place. */
import { createServer } from 'node:http'
import { httpReceiver, nodeListener } from '../../../src/brokers/http/index.ts'
import { nats } from '../../../src/brokers/nats/index.ts'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import type { Publisher, Source } from '../../../src/index.ts'
import { close, listen, SECRET, sender } from '../../brokers/http/support.ts'
import { onServer, QUICK } from '../../brokers/kafka/support.ts'
import { connecting } from '../../brokers/nats/support.ts'
import { brokerAt } from '../../brokers/rabbitmq/support.ts'
import { ioredis } from '../../brokers/redis-streams/support.ts'

export interface Job {
  readonly broker: keyof typeof PLACES
  /** Of the broker; of the receiver, for whoever sends to it. */
  readonly url: string
  readonly place: string
  readonly database: string
  /** Where this process writes its spans. */
  readonly spans: string
}

interface Place {
  publisher(): Publisher
  /** What tells others how to reach it comes second. */
  source(): Promise<readonly [Source, string]>
  close(): Promise<unknown>
}

export const PLACES = {
  rabbitmq({ url, place }: Job): Place {
    const broker = brokerAt(url, { exchange: `${place}-x` })
    return {
      publisher: () => broker,
      source: async () => [broker.source({ queue: place }) as never, url],
      close: () => broker.close(),
    }
  },
  kafka({ url, place }: Job): Place {
    const broker = onServer(url)
    return {
      publisher: () => broker.publisher({ topic: place }),
      source: async () => [broker.source({ topic: place, group: place, ...QUICK }) as never, url],
      close: () => broker.close(),
    }
  },
  nats({ url, place }: Job): Place {
    const create = { subjects: [`${place}.>`] }
    const broker = nats({ connection: connecting(url), stream: place, create })
    return {
      publisher: () => broker.publisher({ subject: ({ type }) => `${place}.${type}` }),
      source: async () => [broker.source({ group: 'billing', create: true }) as never, url],
      close: () => broker.close(),
    }
  },
  redis({ url, place }: Job): Place {
    const broker = redisStreams({ client: ioredis(url) })
    return {
      publisher: () => broker.publisher({ stream: place }),
      source: async () => [broker.source({ stream: place, group: 'billing', block: '50ms' }) as never, url],
      close: () => broker.close(),
    }
  },
  http({ url }: Job): Place {
    const receiver = httpReceiver({ secrets: SECRET })
    const server = createServer(nodeListener(receiver))
    return {
      publisher: () => sender(url),
      async source() {
        const port = await listen(server)
        return [receiver as never, `http://127.0.0.1:${port}/hooks`]
      },
      close: async () => {
        await receiver.stop()
        if (server.listening) await close(server)
      },
    }
  },
}
