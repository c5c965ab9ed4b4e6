import { expect, test } from 'vitest'
import { redisStreams } from '../../src/brokers/redis-streams/index.ts'
import { type Publisher, run, type Stoppable } from '../../src/flow/index.ts'
import { describeWith, service } from '../support/services.ts'
import { onServer, PARTITIONS } from './kafka/support.ts'
import { connecting, broker as natsBroker } from './nats/support.ts'
import { brokerAt } from './rabbitmq/support.ts'
import { ioredis } from './redis-streams/support.ts'
import { fresh, message, NEVER } from './support.ts'

interface Member {
  readonly broker: Stoppable
  readonly publisher: Publisher
}

const MEMBERS: Record<string, (url: string) => Member> = {
  redis(url) {
    const broker = redisStreams({ client: ioredis(url) })
    return { broker, publisher: broker.publisher({ stream: fresh() }) }
  },
  nats(url) {
    const broker = natsBroker(connecting(url))
    return { broker, publisher: broker.publisher({ subject: `${broker.stream}.a` }) }
  },
  kafka(url) {
    const broker = onServer(url)
    const create = { partitions: PARTITIONS, replication: 1 }
    return { broker, publisher: broker.publisher({ topic: fresh(), create }) }
  },
  rabbitmq(url) {
    const broker = brokerAt(url, { exchange: fresh() })
    return { broker, publisher: broker.publisher({ unroutable: 'ok' }) }
  },
}

for (const [name, make] of Object.entries(MEMBERS)) {
  describeWith([name], `${name} as a member of run`, () => {
    test('ends with its publishers: nothing of them keeps the process alive', async () => {
      const { broker, publisher } = make(service(name).url)
      const publish = async () => (await publisher.publish([message()], NEVER))[0]!.kind
      expect(await publish()).toBe('ok')
      const stop = new AbortController()
      const running = run([broker], { signal: stop.signal })
      stop.abort()
      await running
      expect(await publish().catch(() => 'down')).toBe('down')
    })
  })
}
