/**
 * A routing relay that kills itself where it is told, or is killed. Each destination appends a line to a file of its own
 * before it answers. Arguments: database, folder, `once` to end when there is nothing left.
 */
import { appendFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
import { OK, type Publisher, RoutingRelay, run, shutdownSignal } from '../../src/index.ts'
import { postgres } from '../../src/postgres/index.ts'
import { crashingPublisher, crashPoint } from '../../src/testing/index.ts'
import { BRANCHES, ROUTES, untilEmpty } from './routes.ts'

const [url, folder, once] = process.argv.slice(2) as [string, string, string?]
const pool = new pg.Pool({ connectionString: url, max: 20 })
pool.on('error', () => {})
const { outbox } = postgres({ pool, outbox: { branches: BRANCHES } })

const destination = (name: string): Publisher =>
  crashingPublisher(
    {
      name,
      features: {},
      async publish(messages) {
        appendFileSync(join(folder, name), messages.map(({ id }) => `${id}\n`).join(''))
        return messages.map(() => OK)
      },
    },
    name,
  )

const distribute = outbox.distribute.bind(outbox)
outbox.distribute = async (events) => {
  crashPoint('move.before')
  await distribute(events)
  crashPoint('move.after')
}

const relay = new RoutingRelay({
  from: outbox,
  to: { warehouse: destination('warehouse'), audit: destination('audit') },
  routes: ROUTES,
  lease: '1s',
  poll: '20ms',
  maxPoll: '50ms',
  batch: 20,
  maxBatch: 20,
})
console.log('ready')
if (once === undefined) {
  await run([relay], { signal: shutdownSignal() })
} else {
  await untilEmpty(relay)
  await relay.stop()
}
await pool.end()
