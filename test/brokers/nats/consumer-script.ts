/**
 * A consumer to be killed: appends the id of every message it handles to a file.
 * Arguments: url, stream, group, file, delay, ackWait.
 */
import { appendFileSync } from 'node:fs'
import { nats } from '../../../src/brokers/nats/index.ts'
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { connecting } from './support.ts'

const [url, stream, group, file, delay, ackWait] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  string,
  string,
]
const broker = nats({ connection: connecting(url), stream })
const flow = new Flow({
  name: 'victim',
  from: broker.source({ group, create: true, ackWait: Number(ackWait), block: 200 }),
  step: {
    each: async ({ message }) => {
      await systemClock.sleep(Number(delay))
      appendFileSync(file, `${message.id}\n`)
    },
  },
})
await flow.start()
console.log('ready')
