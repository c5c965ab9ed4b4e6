import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { job, relayInto } from '../kill-child.ts'
import { ioredis } from './support.ts'

const broker = redisStreams({ client: ioredis(job.url) })
const to = broker.publisher({ stream: job['stream']! })
await relayInto(to, async () => {
  await to.close!()
  await broker.close()
})
