import { beforeAll, expect, test } from 'vitest'
import { build } from '../readme/support.ts'
import { scale } from '../support/scale.ts'
import { describeWith } from '../support/services.ts'
import { atRest, audit } from './order-service/books.ts'
import { Buyers } from './order-service/buyers.ts'
import { ROLES, Shop } from './order-service/shop.ts'

const ROUNDS = scale({ test: 1, full: 1, torture: 5 })

beforeAll(build, 170_000)

describeWith(['postgres', 'rabbitmq'], 'examples/order-service', () => {
  test('each process is killed in turn under load, then all are stopped: everything adds up', {
    timeout: 300_000,
  }, async () => {
    const shop = await Shop.open()
    const buyers = new Buyers(shop)
    try {
      await buyers.comeIn()
      const coming = buyers.come()
      coming.catch(() => {}) // awaited below, unless something else fails before
      for (let round = 0; round < ROUNDS; round++) {
        for (const role of ROLES) {
          await shop.kill(role)
          await shop.answers(role)
        }
      }
      // A deploy, with requests, messages and sagas under way.
      expect(await shop.stop()).toBe(0)
      await shop.start()
      buyers.leave()
      await coming
      await atRest(shop)
      expect(await audit(shop, buyers.placed)).toEqual({})
      expect(buyers.placed.length).toBeGreaterThan(50)
      expect(shop.other).toEqual([])
    } finally {
      buyers.leave()
      await shop.close()
    }
  })
})
