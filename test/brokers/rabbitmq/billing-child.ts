import { bill, job } from '../kill-child.ts'
import { brokerAt } from './support.ts'

const broker = brokerAt(job.url, { exchange: job['exchange']! })
await bill(broker.source({ queue: job['queue']! }), () => broker.close())
