import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { onRedis } from '../kill-store.ts'
import { killTests } from '../kills.ts'
import { fresh, ioredis } from './support.ts'

describeWith(['redis', 'postgres'], 'redis streams: processes are killed', () => {
  killTests({
    broker: 'Redis Streams',
    folder: import.meta.url,
    stores: [{ name: 'Redis', reader: 'auto', make: () => onRedis(service('redis').url) }],
    async place() {
      const { url } = service('redis')
      const stream = fresh()
      const broker = redisStreams({ client: ioredis(url) })
      const publisher = broker.publisher({ stream })
      const source = broker.source({ stream, group: 'billing' })
      const stats = async () => (await source.stats())[0]!
      return {
        job: { url, stream },
        publish: (messages, signal) => publisher.publish(messages, signal),
        async waiting() {
          const { lag, unsettled, waiting } = await stats()
          return lag + unsettled + waiting
        },
        dead: async () => (await stats()).dead,
        async close() {
          await publisher.close!()
          await broker.close()
        },
      }
    },
  })
})
