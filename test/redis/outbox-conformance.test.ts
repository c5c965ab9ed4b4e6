import { describeWith, service } from '../support/services.ts'
import { outboxConformance } from './outbox-support.ts'
import { ioredis, nodeRedis } from './support.ts'

const clients = [
  { server: 'redis', driver: 'ioredis', client: ioredis },
  { server: 'redis6', driver: 'ioredis', client: ioredis },
  { server: 'redis', driver: 'node-redis', client: nodeRedis },
]

for (const { server, driver, client } of clients) {
  describeWith([server], `redis outbox: ${driver} on ${server}`, () => {
    outboxConformance(`${driver} on ${server}`, () => client(service(server).url))
  })
}
