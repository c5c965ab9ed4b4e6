import { afterAll, expect, test } from 'vitest'
import { everyPointHit, type ScriptResult } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { freshTag } from '../support.ts'
import { POINTS } from './points.ts'
import { serviceOn } from './service.ts'
import { child, place, verify } from './support.ts'

const MAIN = ['after receive', 'handler has queued', 'before commit', 'after commit', 'forwarder.after-publish']
const points = scale<readonly string[]>({ test: MAIN, full: POINTS, torture: POINTS })
const servers = scale({ test: ['redis'], full: ['redis', 'redis6'], torture: ['redis', 'redis6'] })

for (const server of servers) {
  describeWith([server], `a service killed at each point, on ${server}`, () => {
    const results: ScriptResult[] = []

    test.each(points)('%s', { timeout: 120_000 }, async (point) => {
      const { url } = service(server)
      const tag = freshTag('crash')
      await place(url, tag, 1, 5, 2)
      // It fails once, so that a mark is given up; and takes its time, so that one is renewed.
      const takes = point.endsWith('renew') ? 1500 : 0
      const victim = child(url, { tag, takes, fails: 1, concurrency: 3 }, point)
      const result = await victim.finished
      results.push(result)
      expect(result).toMatchObject({ crashed: true, signal: 'SIGKILL' })
      const survivor = serviceOn(url, { tag })
      await survivor.start()
      await place(url, tag, 6, 8)
      await verify(url, tag, 8)
      await survivor.stop()
    })

    afterAll(() => {
      if (points === POINTS) everyPointHit(POINTS, results)
    })
  })
}
