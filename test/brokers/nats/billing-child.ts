import { nats } from '../../../src/brokers/nats/index.ts'
import { bill, job } from '../kill-child.ts'
import { connecting } from './support.ts'

const broker = nats({ connection: connecting(job.url), stream: job['stream']! })
const from = broker.source({ group: 'billing', create: true, ackWait: '2s', block: '200ms' })
await bill(from, () => broker.close())
