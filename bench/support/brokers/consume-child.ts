/**
 * One who consumes, in a process of its own: our router with a handler that does nothing, or a bare loop that
 * acknowledges in batches what it has looked at. Measured from the first message to the last: connecting does not count.
 */
import * as client from 'prom-client'
import { Router } from 'waybill'
import { recordMetrics } from 'waybill/observability'
import { OrderPlaced } from '../pg-events.ts'
import { brokerNamed } from './all.ts'
import { serveRounds } from './rounds.ts'

export interface ConsumeOptions {
  readonly broker: string
  readonly side: 'ours' | 'bare'
  readonly tuned: boolean
  readonly url: string
}

const { broker: name, side, tuned, url } = JSON.parse(process.argv[2]!) as ConsumeOptions
const broker = brokerNamed(name)

if (side === 'ours') recordMetrics({ client: client as never })
await serveRounds({}, async ({ name: group }, watch) => {
  if (side === 'bare') {
    const stop = await broker.bareConsume(url, group, () => watch.done(1))
    await watch.all
    await stop()
    return
  }
  const { source, consume, close } = broker.source(url, group, tuned)
  const router = new Router('bench').on(OrderPlaced, () => watch.done(1))
  const consumer = router.consume(source, consume)
  await consumer.start()
  await watch.all
  await consumer.stop()
  await close()
})
