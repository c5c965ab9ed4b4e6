import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { factory, onServer } from './support.ts'

describeWith(['kafka'], 'kafka: kafkajs', () => {
  const made = factory('kafkajs', () => onServer(service('kafka').url))
  runSuite(brokerSuite(made))
})
