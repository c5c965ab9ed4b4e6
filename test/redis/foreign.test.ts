import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { describe, expect, test } from 'vitest'
import { classify } from '../../src/core/index.ts'
import { redisOutbox } from '../../src/redis/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { clone, clones } from '../support/redis-clone.ts'
import { ioredis, nodeRedis, storeOf } from './support.ts'

const drivers = [
  ['ioredis', ioredis],
  ['node-redis', nodeRedis],
] as const

describe('a store on what is no Redis, or an old one', () => {
  for (const [what, { says, answer }] of Object.entries(clones)) {
    for (const [driver, client] of drivers) {
      test(`${what}: one clear error, whoever is first to need the server (${driver})`, async () => {
        const asked: string[] = []
        const { url, close } = await clone((words) => {
          asked.push(words[0]!)
          return answer(words)
        })
        const refusal = { code: 'UNSUPPORTED_SERVER', message: expect.stringMatching(says) }
        const db = storeOf(client(url))
        const work = db.withTransaction(async (tx) => tx.set(db.key('n'), 1))
        await expect(work).rejects.toMatchObject(refusal)
        const received = db.withTransaction((tx) => db.inbox.receive(tx, { subscriber: 's', source: '/s', id: '1' }))
        await expect(received).rejects.toMatchObject(refusal)
        await expect(redisOutbox({ on: [storeOf(client(url))] }).enqueueAlone(sample(1))).rejects.toMatchObject(refusal)
        expect(asked, 'nothing was tried').not.toContain('set')
        expect(classify(await work.catch((error: unknown) => error)), 'no message is charged').toBe('down')
        close()
      })
    }
  }
})

describe.concurrent('a server that takes connections and says nothing', () => {
  test.for(drivers)('is given up in time, and nobody is charged: %s', async ([, client], { expect }) => {
    const sockets: Socket[] = []
    const server = createServer((socket) => void sockets.push(socket)).listen(0, '127.0.0.1')
    await once(server, 'listening')
    const db = storeOf(client(`redis://127.0.0.1:${(server.address() as AddressInfo).port}`), { timeout: '1s' })
    const work = db.withTransaction(async (tx) => tx.set(db.key('n'), 1))
    const error = await work.catch((reason: unknown) => reason)
    expect(String(error)).toContain('cannot connect to Redis: Redis has not responded within 5000 ms')
    expect(classify(error)).toBe('down')
    for (const socket of sockets) socket.destroy()
    await new Promise((resolve) => server.close(resolve))
  })
})
