import { expect, test } from 'vitest'
import { seededRandom } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith } from '../../support/services.ts'
import { CLEAN, site } from './fault-support.ts'
import { until } from './support.ts'

const LONG = { timeout: 1_800_000 }

describeWith(['postgres'], 'webhooks: many kills, inbox on', () => {
  test(
    'the receiver is killed ten times within 5,000 messages: nothing is lost, effects happen once',
    LONG,
    async () => {
      const it = await site(1_700_000)
      try {
        const size = scale({ test: 1000, full: 5000, torture: 50_000 })
        const kills = scale({ test: 3, full: 10, torture: 200 })
        const sent = await it.fill(size)
        const random = seededRandom(17)
        await it.relay().start()
        for (let kill = 0; kill < kills; kill++) {
          const victim = await it.startReceiver(1)
          const before = await it.effects()
          const after = 50 + Math.floor(random.next() * 450)
          const goal = Math.min(size - 1, before + after)
          await until('some progress', async () => (await it.effects()) >= goal, 300_000)
          victim.kill()
          await victim.finished
        }
        await it.startReceiver()
        await until('all is settled', async () => (await it.waiting()) === 0, 600_000)
        expect(await it.problems(sent)).toEqual(CLEAN)
      } finally {
        await it.end()
      }
    },
  )

  for (const reader of ['owner', 'lease'] as const) {
    test(
      `outbox in PostgreSQL (${reader}) → relay → HTTP → receiver with inbox, both killed in turn`,
      LONG,
      async () => {
        const it = await site(1_700_000)
        try {
          const size = scale({ test: 600, full: 3000, torture: 30_000 })
          const kills = scale({ test: 4, full: 10, torture: 100 })
          const sent = await it.fill(size)
          let relay = await it.startRelay(reader)
          let receiver = await it.startReceiver(1)
          for (let kill = 1; kill <= kills; kill++) {
            await until('some progress', async () => (await it.effects()) >= (size * kill) / (kills + 2), 300_000)
            if (kill % 2 === 0) {
              receiver.kill()
              await receiver.finished
              receiver = await it.startReceiver(1)
            } else {
              relay.kill()
              await relay.finished
              relay = await it.startRelay(reader)
            }
          }
          await until('all is settled', async () => (await it.waiting()) === 0, 600_000)
          expect(await it.problems(sent)).toEqual(CLEAN)
        } finally {
          await it.end()
        }
      },
    )
  }
})
