/**
 * A consumer to be killed, paused, or killed by a message. Arguments: url, topic, group, milliseconds per message, and
 * the id of a message that ends the process. Prints what it does.
 */
import { systemClock } from '../../../src/core/index.ts'
import { Flow } from '../../../src/flow/index.ts'
import { onServer } from './support.ts'

const [url, topic, group, delay, poison] = process.argv.slice(2) as [string, string, string, string, string?]
const broker = onServer(url)
const flow = new Flow({
  name: 'victim',
  from: broker.source({ topic, group, session: '1s', block: 50, maxCrashes: 2 }),
  outage: { min: 20, max: 100 },
  step: {
    each: async ({ message: { id } }) => {
      console.log(`begin ${id}`)
      if (id === poison) process.kill(process.pid, 'SIGKILL')
      await systemClock.sleep(Number(delay))
      console.log(`end ${id}`)
    },
  },
})
await flow.start()
console.log('ready')
