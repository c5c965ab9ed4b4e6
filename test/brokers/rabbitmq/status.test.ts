import { afterAll, expect, test } from 'vitest'
import { Router } from '../../../src/index.ts'
import { faultProxy } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { eventually } from '../../support/wait.ts'
import { brokerAt, dropQueues, fresh, message, NEVER } from './support.ts'

describeWith(['rabbitmq'], 'a consumer whose broker is cut off', () => {
  const url = () => service('rabbitmq').url
  const queue = fresh()
  afterAll(() => dropQueues(url(), queue))

  test('is failing, with the reason and the next try, and running when the broker is back', async () => {
    const { hostname, port } = new URL(url())
    await using proxy = await faultProxy({ host: hostname, port: Number(port) })
    const exchange = fresh('x')
    const [direct, broker] = [brokerAt(url(), { exchange }), brokerAt(proxy.url(url()), { exchange })]
    const router = new Router('billing', { unknown: 'ack-and-warn' })
    const outage = { min: 20, max: 100 }
    const consumer = router.consume(broker.source({ queue }), { outage })
    const until = (state: string) =>
      eventually(state, () => consumer.status().state === state, { seen: () => consumer.status() })
    await consumer.start()
    try {
      await until('running')
      await proxy.refuse()
      await until('failing')
      expect(consumer.status()).toMatchObject({
        reason: expect.stringMatching(/connection .* is lost|channel was closed/),
      })
      await eventually('the next try has failed too', () => /cannot connect/.test(consumer.status().reason ?? ''))
      expect(consumer.status()).toMatchObject({ name: 'billing', state: 'failing', retryAt: expect.any(Date) })
      await proxy.restore()
      await until('running')
      await direct.publish([message()], NEVER)
      await eventually('it handles again', () => consumer.status().lastSuccess !== undefined)
    } finally {
      await consumer.stop()
      await broker.close()
      await direct.close()
    }
    expect(consumer.status()).toMatchObject({ state: 'stopped' })
  })
})
