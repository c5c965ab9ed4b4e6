/** A consumer to be killed: counts every message it handles in a hash. Arguments: url, stream, group, hash, delay. */

import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { ioredis } from './support.ts'

const [url, stream, group, counts, delay, consumer] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  string,
  string?,
]
const counter = ioredis(url)
const broker = redisStreams({ client: ioredis(url) })
const name = consumer === undefined ? {} : { consumer }
const flow = new Flow({
  name: 'victim',
  from: broker.source({ stream, group, block: 100, reclaim: { every: 200, idle: 600 }, ...name }),
  step: {
    each: async ({ message }) => {
      await systemClock.sleep(Number(delay))
      await counter.hincrby(counts, message.id, 1)
    },
  },
})
await flow.start()
console.log('ready')
