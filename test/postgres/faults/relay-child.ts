/** A relay in a process of its own, told what to do by JOB. It ends gracefully on SIGTERM. */
import pg from 'pg'
import type { OutboxReader } from '../../../src/adapter.ts'
import { type RawMessage, Relay, type RelayOptions, telemetry } from '../../../src/index.ts'
import { postgres } from '../../../src/postgres/index.ts'
import { crashingPublisher, crashingSource } from '../../../src/testing/index.ts'
import { Journal, journalPublisher } from './journal.ts'
import { sqlBroker } from './sql-broker.ts'

export interface RelayJob {
  readonly url: string
  readonly journal: string
  readonly name: string
  readonly relay: Omit<Partial<RelayOptions>, 'from' | 'to' | 'clock' | 'random' | 'classify'>
  /** How long each publish takes, in milliseconds. */
  readonly delay?: number
  /** Publishing this event kills the process. */
  readonly poison?: string
  /** Also publish into the table `broker` of this database. */
  readonly broker?: string
  /** Crash points have this prefix. */
  readonly points?: string
}

const job: RelayJob = JSON.parse(process.env['JOB'] ?? '{}')
const journal = new Journal(job.journal)
const { name: relay } = job

telemetry['flow.opened'].subscribe(() => journal.write({ what: 'opened', relay }))
telemetry['flow.lost'].subscribe(() => journal.write({ what: 'lost', relay }))
telemetry['flow.paused'].subscribe(() => journal.write({ what: 'paused', relay }))
telemetry['message.dead'].subscribe(({ id }) => journal.write({ what: 'dead', relay, id }))
telemetry['flow.settled'].subscribe(({ stale }) => journal.write({ what: 'settled', relay, stale }))
telemetry.warning.subscribe(({ message }) => console.log(`warning: ${message}`))

const pool = new pg.Pool({ connectionString: job.url, max: 40 })
pool.on('error', () => {})
const { outbox } = postgres({ pool })

const from: OutboxReader = {
  name: outbox.name,
  reader(options) {
    const reader = outbox.reader(options)
    const wrapped = new Map()
    return {
      async assignment() {
        return (await reader.assignment()).map((source) => {
          if (job.points === undefined) return source
          if (!wrapped.has(source)) wrapped.set(source, crashingSource(source, job.points))
          return wrapped.get(source)
        })
      },
      close: () => reader.close(),
    }
  },
}

const die = (messages: readonly RawMessage[]) => {
  if (messages.some(({ id }) => id === job.poison)) process.kill(process.pid, 'SIGKILL')
}
const inner = job.broker === undefined ? undefined : sqlBroker(job.broker)
const publisher = journalPublisher(journal, { relay, delay: job.delay ?? 0, inner, during: die })
const to = job.points === undefined ? publisher : crashingPublisher(publisher, job.points)
const worker = new Relay({ from, to, poll: '20ms', maxPoll: '50ms', ...job.relay, name: relay })

await worker.start()
console.log('started')
process.on('SIGTERM', async () => {
  await worker.stop()
  console.log('stopped')
  process.exit(0)
})
