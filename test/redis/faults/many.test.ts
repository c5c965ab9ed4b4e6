import { expect, test } from 'vitest'
import { type RunningScript, seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { freshTag, reader } from '../support.ts'
import { child, place, verify } from './support.ts'

const COUNT = scale({ test: 1000, full: 10_000, torture: 1_000_000 })
const KILLS = scale({ test: 2, full: 20, torture: 200 })
const servers = scale({ test: ['redis'], full: ['redis', 'redis6'], torture: ['redis'] })

for (const server of servers) {
  describeWith([server], `many messages and many kills, on ${server}`, () => {
    test('through subscriber, inbox, unit of work, outbox and forwarder: nothing lost, nothing twice', {
      timeout: scale({ test: 120_000, full: 600_000, torture: 86_400_000 }),
    }, async () => {
      const { url } = service(server)
      const tag = freshTag('many')
      const random = seededRandom(20)
      const client = reader(url)
      const handled = () => client.hlen(`{${tag}}:times`)
      await place(url, tag, 1, COUNT, 10)
      const settings = { tag, lease: 500, idle: 500, concurrency: 16 }
      let killed = 0
      let one: RunningScript | undefined
      while (killed < KILLS && (await handled()) < COUNT) {
        one = child(url, settings, undefined, 86_400_000)
        await one.line('ready', 60_000)
        const from = await handled()
        // Somewhere in the next 50 to 500 messages, wherever that catches it.
        const room = Math.max(1, Math.min(500, Math.floor((COUNT - from) / (KILLS - killed + 1))))
        const after = Math.min(room, 50 + Math.floor(random.next() * 450))
        while ((await handled()) < from + after) if ((await handled()) >= COUNT) break
        one.kill()
        await one.finished
        killed++
      }
      expect(killed).toBe(KILLS)
      const last = child(url, settings, undefined, 86_400_000)
      const { forwarded } = await verify(url, tag, COUNT)
      // What was published twice, because nobody knew, is little.
      expect(forwarded - COUNT).toBeLessThan(KILLS * 1000)
      last.kill('SIGTERM')
      await last.finished
      const left = (await client.keys(`{${tag}}:*`)).filter((key) => !key.includes(':inbox:'))
      expect(left.length).toBeLessThan(10)
      await client.unlink(...(await client.keys(`{${tag}}:*`)))
    })
  })
}
