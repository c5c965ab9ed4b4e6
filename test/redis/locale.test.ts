import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { command, onPath } from '../../scripts/services/files.ts'
import { redis } from '../../scripts/services/kinds/redis.ts'
import type { Entry } from '../../scripts/services/types.ts'
import { redisDue } from '../../src/redis/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { describeWith, privateServer } from '../support/services.ts'
import { outboxOn } from './outbox-support.ts'
import { ioredis, reader } from './support.ts'

const folder = await mkdtemp(join(tmpdir(), 'waybill-locale-'))
afterAll(() => rm(folder, { recursive: true, force: true }))

const LOCALE = 'en_US.UTF-8'
/** As where the system has a language set: Lua then compares text as people there sort it, and Redis by bytes. */
const ofPeople: Entry = {
  ...redis,
  async prepare(site) {
    const made = await redis.prepare(site)
    const env = { LOCPATH: folder, LC_ALL: LOCALE }
    return { ...made, launches: made.launches.map((launch) => ({ ...launch, env: { ...launch.env, ...env } })) }
  },
}

const made =
  onPath('localedef') !== null &&
  (await command('localedef', ['-i', 'en_US', '-f', 'UTF-8', join(folder, LOCALE)]).then(
    () => chmod(folder, 0o755).then(() => true),
    () => false,
  ))

describeWith(['redis'], 'a Redis that was started with a language', () => {
  // Without localedef, or the sources of its locales, there is no locale whose order is not that of bytes.
  test.skipIf(!made)(
    'intents that cannot be decided stand in nobody’s way, whatever the order of ids is there',
    async () => {
      const { url } = await privateServer(ofPeople)
      expect(await reader(url).eval("return tostring('a' < 'B')", 0), 'its order is another').toBe('true')
      const { outbox } = outboxOn(ioredis(url))
      const due = redisDue({ outbox })
      const at = new Date(Date.now() - 1000)
      for (const id of ['B', 'C', 'D', 'a', 'b']) await due.record({ id, at })
      const event = ({ id }: { id: string }) => {
        if (id === 'B' || id === 'C') throw new Error('no such ticket')
        return sample(1, { key: id })
      }
      expect(await due.worker({ batch: 2, event }).runOnce()).toMatchObject({ enqueued: 3, failed: 2 })
    },
  )
})
