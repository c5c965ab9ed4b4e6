import { test } from 'vitest'
import { brokerSuite } from '../../../src/testing/index.ts'
import { describeWith, service } from '../../support/services.ts'
import { factory, onServer } from './support.ts'

describeWith(['kafka'], 'kafka: kafkajs', () => {
  const made = factory('kafkajs', () => onServer(service('kafka').url))
  for (const { name, skip, run } of brokerSuite(made)) test.skipIf(skip !== undefined)(name, run)
})
