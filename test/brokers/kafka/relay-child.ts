import { job, relayInto } from '../kill-child.ts'
import { onServer } from './support.ts'

const to = onServer(job.url).publisher({ topic: job['topic']! })
await relayInto(to, () => to.close!())
