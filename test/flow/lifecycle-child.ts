/** What run.test.ts sends a signal to: a server, a flow with one message in flight, and a pool. */
import { Message } from '../../src/core/index.ts'
import { Flow, run, shutdownSignal } from '../../src/flow/index.ts'

const say = (text: string) => process.stdout.write(`${text}\n`)
const keepAlive = setInterval(() => {}, 1000)
let finish = () => {}
const finished = new Promise<void>((resolve) => {
  finish = resolve
})

const flow = new Flow({
  name: 'consumer',
  from: {
    name: 'source',
    features: {},
    async open() {
      let given = false
      return {
        lost: new AbortController().signal,
        async take() {
          if (given) return []
          given = true
          const message = new Message({ id: '1', source: '/s', type: 't' }, '')
          return [{ message, key: undefined, attempts: 0, size: 1 }]
        },
        async settle(batch) {
          for (const [, { kind }] of batch) say(`settled ${kind}`)
          return 0
        },
        async close() {
          say('session closed')
        },
      }
    },
  },
  step: {
    async each() {
      say('handling')
      await finished
      say('handled')
    },
  },
})

const signal = shutdownSignal()
signal.addEventListener('abort', () => say(String(signal.reason.message)))
const server = {
  phase: 'requests',
  stop() {
    say('http closed')
    if (process.argv[2] !== 'stuck') setTimeout(finish, 50)
  },
} as const
const pool = {
  phase: 'stores',
  stop() {
    clearInterval(keepAlive)
    say('pool closed')
  },
} as const

await run([pool, flow, server], { signal })
say('bye')
