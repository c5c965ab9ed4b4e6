import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { factory } from './support.ts'

describeWith(['rabbitmq'], 'rabbitmq: amqplib', () => {
  const made = factory('amqplib on rabbitmq', () => service('rabbitmq').url)
  runSuite(brokerSuite(made))
})
