import { brokerSuite } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { runSuite } from '../../support/suite.ts'
import { describeServers, factory, SERVERS } from './support.ts'

describeServers(scale(SERVERS), 'amqplib', (url, server) => {
  runSuite(brokerSuite(factory(`amqplib on ${server}`, url)), { concurrent: true })
})
