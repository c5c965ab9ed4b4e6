import { expect, test } from 'vitest'
import { runScript } from '../../../src/testing/index.ts'
import { bundled } from '../../support/bundled.ts'
import { describeWith, service } from '../../support/services.ts'
import { killTests, LONG } from '../kills.ts'
import { fresh, message, NEVER, onServer, QUICK, until } from './support.ts'

/** A topic and a group for it. */
async function place() {
  const { url } = service('kafka')
  const [topic, group] = [fresh('t'), fresh('g')]
  const broker = onServer(url)
  const source = broker.source({ topic, group, ...QUICK })
  await (await source.open(NEVER)).close()
  const publisher = broker.publisher({ topic })
  return {
    job: { url, topic, group },
    deadLetters: () => source.deadLetters(),
    publish: publisher.publish.bind(publisher),
    waiting: async () => (await source.stats()).reduce((sum, { lag }) => sum + lag, 0),
    dead: async () => (await source.deadLetters()).length,
    async close() {
      await publisher.close!()
      await broker.close()
    },
  }
}

describeWith(['kafka', 'postgres'], 'kafka: processes are killed', () => {
  killTests({ broker: 'Kafka', folder: import.meta.url, place, ordered: true })

  test('a message that kills whoever touches it becomes a dead letter, and the others are handled', LONG, async () => {
    const to = await place()
    const { url, topic, group } = to.job
    const script = bundled(new URL('./consumer-script.ts', import.meta.url))
    const sent = Array.from({ length: 30 }, (_, n) => message('{}', { id: `n${n}`, key: 'k' }))
    await to.publish(sent, NEVER)
    const settled = async () => (await to.waiting()) === 0
    let deaths = 0
    for (let alive = false; !alive; ) {
      const victim = runScript({ script, args: [url, topic, group, '1', 'n11'], timeout: LONG.timeout })
      const died = victim.finished.then(() => true)
      alive = !(await Promise.race([died, until('all is committed', settled, 120_000).then(() => false)]))
      if (alive) {
        victim.kill()
        await victim.finished
      } else deaths++
      expect(deaths, 'found before long').toBeLessThan(8)
    }
    const letters = await to.deadLetters()
    expect(letters.map(({ message: { id } = {}, reason }) => [id, reason])).toEqual([
      ['n11', expect.stringMatching(/^2 attempts: .*CRASHED/)],
    ])
    // Once among others; once behind those that were done and not committed, which come again and open the window; once
    // behind the one before it, whose commit was on its way; and then alone as often as it may.
    expect(deaths).toBeLessThanOrEqual(5)
    await to.close()
  })
})
