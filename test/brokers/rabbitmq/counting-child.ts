/** A consumer to be killed. Arguments: url, exchange, queue, prefetch, how long each message takes. */
import amqplib from 'amqplib'
import { rabbitmq } from '../../../src/brokers/rabbitmq/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'

const [url, exchange, queue, prefetch, delay] = process.argv.slice(2) as [string, string, string, string, string]
const broker = rabbitmq({ client: amqplib, url, exchange, declare: true })
const flow = new Flow({
  name: 'victim',
  from: broker.source({ queue, prefetch: Number(prefetch), deliveryLimit: 3 }),
  step: { each: () => systemClock.sleep(Number(delay)) },
})
await flow.start()
console.log('ready')
