import { afterAll, beforeAll } from 'vitest'
import type { NatsConnectionLike } from '../../../src/brokers/nats/index.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { connecting, factory } from './support.ts'

describeWith(['nats'], 'nats: connections of its own', () => {
  const made = factory('own connections', () => connecting(service('nats').url))
  runSuite(brokerSuite(made), { concurrent: true })
})

describeWith(['nats'], 'nats: one connection for all', () => {
  let shared: NatsConnectionLike
  beforeAll(async () => {
    shared = await connecting(service('nats').url)()
  })
  afterAll(async () => await shared.close())
  const made = factory('one connection', () => shared)
  runSuite(brokerSuite(made), { concurrent: true })
})
