import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { bill, job } from '../kill-child.ts'
import { ioredis } from './support.ts'

const broker = redisStreams({ client: ioredis(job.url) })
const reclaim = { every: '200ms', idle: '2s' } as const
const from = broker.source({ stream: job['stream']!, group: 'billing', block: '100ms', batch: 50, reclaim })
await bill(from, () => broker.close())
