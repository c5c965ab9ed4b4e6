import { test } from 'vitest'
import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
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
    for (const { name, skip, run } of brokerSuite(made)) test.skipIf(skip !== undefined)(name, run)
  })
}
