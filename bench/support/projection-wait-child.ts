/** Writes at a steady pace, and waits after each commit until the view has it. With `runs`, the projector is here. */
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { Projector, viewOf } from 'waybill/projection'
import { placed } from './pg-events.ts'
import { customers } from './projection-view.ts'

const { url, events, perSecond, runs } = JSON.parse(process.argv[2]!) as {
  url: string
  events: number
  perSecond: number
  runs: boolean
}
const pool = new pg.Pool({ connectionString: url, max: 12, min: 8 })
const db = postgres({ pool, outbox: { log: true }, projections: true })
const projection = customers()
const projector = runs ? new Projector({ store: db, log: db.log, projections: [projection] }) : undefined
await projector?.start()
const view = projector?.view(projection) ?? viewOf(db, projection)
const until = Date.now() + 30_000
while ((await db.projections.load(projection))?.builtAt === undefined) {
  if (Date.now() > until) throw new Error('nobody has built the view')
  await sleep(10)
}

async function one(i: number): Promise<number> {
  const receipts = await db.withTransaction((tx) => db.outbox.enqueue(tx, placed(i)))
  const began = performance.now()
  const { answer } = await view.waitFor(db.log.token(receipts))
  if (answer !== 'reached') throw new Error(`the view has it not: ${answer}`)
  return performance.now() - began
}

console.log('{}')
for await (const _ of createInterface({ input: process.stdin })) {
  for (let i = 0; i < 100; i++) await one(i)
  const waits: Promise<number>[] = []
  const began = performance.now()
  for (let i = 0; i < events; i++) {
    const pause = began + (i * 1000) / perSecond - performance.now()
    if (pause > 0) await sleep(pause)
    waits.push(one(i))
  }
  console.log(JSON.stringify((await Promise.all(waits)).sort((a, b) => a - b)))
}
await projector?.stop()
await pool.end()
