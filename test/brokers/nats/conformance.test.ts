import { afterAll, beforeAll, test } from 'vitest'
import type { NatsConnectionLike } from '../../../src/brokers/nats/index.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { connecting, factory } from './support.ts'

describeWith(['nats'], 'nats: connections of its own', () => {
  const made = factory('own connections', () => connecting(service('nats').url))
  for (const { name, skip, run } of brokerSuite(made)) test.skipIf(skip !== undefined)(name, run)
})

describeWith(['nats'], 'nats: one connection for all', () => {
  let shared: NatsConnectionLike
  beforeAll(async () => {
    shared = await connecting(service('nats').url)()
  })
  afterAll(async () => await shared.close())
  const made = factory('one connection', () => shared)
  for (const { name, skip, run } of brokerSuite(made)) test.skipIf(skip !== undefined)(name, run)
})
