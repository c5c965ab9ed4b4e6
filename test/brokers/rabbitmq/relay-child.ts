import { job, relayInto } from '../kill-child.ts'
import { brokerAt } from './support.ts'

const broker = brokerAt(job.url, { exchange: job['exchange']! })
await relayInto(broker, () => broker.close())
