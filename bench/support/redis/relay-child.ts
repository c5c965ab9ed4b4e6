/** Our relay out of the script outbox, in a process of its own; what is published goes nowhere. */
import { Redis } from 'ioredis'
import * as client from 'prom-client'
import { Relay } from 'waybill'
import { OK } from 'waybill/adapter'
import { recordMetrics } from 'waybill/observability'
import { redis } from 'waybill/redis'
import { serveRounds } from '../brokers/rounds.ts'
import { placed } from '../pg-events.ts'

const { url, concurrency: batch } = JSON.parse(process.argv[2]!) as { url: string; concurrency: number }
const WRITTEN = 1000

recordMetrics({ client: client as never })
await serveRounds({}, async ({ events }, watch) => {
  const connection = new Redis(url)
  const db = redis({ client: connection, tag: 'bench', outbox: { kind: 'stored' } })
  const { outbox } = db
  for (let from = 0; from < events; from += WRITTEN) {
    await outbox.enqueueAlone(Array.from({ length: Math.min(WRITTEN, events - from) }, (_, i) => placed(from + i)))
  }
  const to = {
    name: 'nowhere',
    features: {},
    publish: async (messages: readonly unknown[]) => {
      watch.done(messages.length)
      return messages.map(() => OK)
    },
  }
  const relay = new Relay({ from: outbox, to, batch, maxBatch: batch, deleteOnPublish: true })
  await relay.start()
  await watch.all
  await relay.stop()
  const left = await connection.hlen(db.key('outbox:entries'))
  if (left !== 0) throw new Error(`the relay left ${left} events behind`)
  await db.stop()
  connection.disconnect()
})
