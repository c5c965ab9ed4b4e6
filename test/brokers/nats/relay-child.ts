import { nats } from '../../../src/brokers/nats/index.ts'
import { job, relayInto } from '../kill-child.ts'
import { connecting } from './support.ts'

const stream = job['stream']!
const broker = nats({ connection: connecting(job.url), stream })
const to = broker.publisher({ subject: ({ type }) => `${stream}.${type}` })
await relayInto(to, () => to.close())
