import { bill, job } from '../kill-child.ts'
import { onServer } from './support.ts'

const broker = onServer(job.url)
const from = broker.source({ topic: job['topic']!, group: job['group']!, session: '1s', block: '50ms' })
await bill(from, () => broker.close(), { outage: { min: 20, max: 200 } })
