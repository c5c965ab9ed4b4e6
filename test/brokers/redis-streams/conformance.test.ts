import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { factory, ioredis, nodeRedis } from './support.ts'

const clients = [
  { server: 'redis', driver: 'ioredis', client: ioredis },
  { server: 'redis6', driver: 'ioredis', client: ioredis },
  { server: 'redis', driver: 'node-redis', client: nodeRedis },
  { server: 'redis6', driver: 'node-redis', client: nodeRedis },
]

for (const { server, driver, client } of clients) {
  describeWith([server], `redis streams: ${driver} on ${server}`, () => {
    const made = factory(`${driver} on ${server}`, () => client(service(server).url))
    runSuite(brokerSuite(made), { concurrent: true })
  })
}
