import { test } from 'vitest'
import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { factory } from './support.ts'

describeWith(['rabbitmq'], 'rabbitmq: amqplib', () => {
  const made = factory('amqplib on rabbitmq', () => service('rabbitmq').url)
  for (const { name, skip, run } of brokerSuite(made)) test.skipIf(skip !== undefined)(name, run)
})
