import { expect, onTestFinished, test } from 'vitest'
import { isReady } from '../../scripts/services/ready.ts'
import { without } from '../support/services.ts'
import { otherClone, ownCache, script } from './support.ts'

test.skipIf(without('nats'))('two clones at once: down in one leaves the servers of the other alone', async () => {
  // One cache for both, as on every developer's machine; what a variable names would be nobody's own.
  const env = { WAYBILL_CACHE: await ownCache(), WAYBILL_TEST_NATS_URL: '' }
  const clones = [await otherClone(), await otherClone()]
  const [one, two] = clones.map((clone) => {
    const services = (...args: string[]) => script('scripts/services/cli.ts', args, env, clone).ended
    onTestFinished(async () => {
      await services('down')
    })
    return services
  }) as [Services, Services]

  const ups = await Promise.all([one('up', 'nats', '--json'), two('up', 'nats', '--json')])
  expect(
    ups.map(({ code }) => code),
    ups.map(({ all }) => all).join('\n'),
  ).toEqual([0, 0])
  const [first, second] = ups.map(({ out }) => JSON.parse(out)[0].url as string)
  expect(first).not.toBe(second)

  await one('down')
  expect([await isReady(first!, 'nats'), await isReady(second!, 'nats')]).toEqual([false, true])
  expect((await one('status')).out).toBe('nothing is running\n')
  expect(JSON.parse((await two('status', '--json')).out)).toMatchObject([{ name: 'nats', url: second, ready: true }])

  // A second `down` ends nothing more, and the other clone can still end its own.
  await one('down')
  expect(await isReady(second!, 'nats')).toBe(true)
  await two('down')
  expect(await isReady(second!, 'nats')).toBe(false)
})

type Services = (...args: string[]) => ReturnType<typeof script>['ended']
