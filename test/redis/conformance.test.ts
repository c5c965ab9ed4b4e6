import { describeWith, service } from '../support/services.ts'
import { conformance, ioredis, nodeRedis } from './support.ts'

const clients = [
  { server: 'redis', driver: 'ioredis', client: ioredis },
  { server: 'redis6', driver: 'ioredis', client: ioredis },
  { server: 'redis', driver: 'node-redis', client: nodeRedis },
  { server: 'redis6', driver: 'node-redis', client: nodeRedis },
]

for (const { server, driver, client } of clients) {
  describeWith([server], `redis: ${driver} on ${server}`, () => {
    conformance(`${driver} on ${server}`, () => client(service(server).url))
  })
}
