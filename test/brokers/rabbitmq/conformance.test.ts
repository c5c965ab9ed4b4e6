import { brokerSuite } from '../../../src/testing/index.ts'
import { scale } from '../../support/scale.ts'
import { describeWith, service } from '../../support/services.ts'
import { runSuite } from '../../support/suite.ts'
import { factory } from './support.ts'

const long = ['rabbitmq', 'rabbitmq4']

for (const server of scale({ test: ['rabbitmq'], full: long, torture: long })) {
  describeWith([server], `${server}: amqplib`, () => {
    const made = factory(`amqplib on ${server}`, () => service(server).url)
    runSuite(brokerSuite(made), { concurrent: true })
  })
}
