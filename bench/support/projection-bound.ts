import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { postgres } from 'waybill/postgres'
import { placed } from './pg-events.ts'

/**
 * How far a log is behind an oracle that knows each writer's end, in milliseconds, sorted. Writers keep transactions open
 * for up to 20 ms after their number was drawn, and a tenth is rolled back. Also what an idle look takes.
 */
export async function boundLag(url: string, { events, writers }: { events: number; writers: number }) {
  const pool = new pg.Pool({ connectionString: url, max: writers + 4 })
  const db = postgres({ pool, outbox: { log: true }, projections: true })
  const { position: start } = await db.log.head()
  /** When whoever drew a number had ended, as it was told. */
  const ended = new Map<bigint, number>()
  const rolledBack = new Set<bigint>()
  let next = 0
  const writer = async () => {
    const client = await pool.connect()
    while (next < events) {
      const i = next++
      await client.query('BEGIN')
      const position = db.log.token(await db.outbox.enqueue(client, placed(i))).positions[0]!
      await sleep((i * 7) % 20)
      const undo = i % 10 === 3
      if (undo) rolledBack.add(position)
      await client.query(undo ? 'ROLLBACK' : 'COMMIT')
      ended.set(position, performance.now())
    }
    client.release()
  }
  const seen = new Map<bigint, number>()
  let writing = true
  const reader = async () => {
    for (let at = start; ; ) {
      const last = !writing
      const page = await db.log.read(at, 1000)
      const now = performance.now()
      for (const { position } of page.events) seen.set(position, now)
      if (page.upTo === at) {
        if (last) return
        await sleep(1)
      }
      at = page.upTo
    }
  }
  const reading = reader()
  await Promise.all(Array.from({ length: writers }, writer))
  writing = false
  await reading
  const lags: number[] = []
  let safeAt = 0
  for (const [position, at] of [...ended].sort(([a], [b]) => Number(a - b))) {
    safeAt = Math.max(safeAt, at)
    if (rolledBack.has(position)) continue
    const when = seen.get(position)
    if (when === undefined) throw new Error(`event ${position} was skipped`)
    lags.push(Math.max(0, when - safeAt))
  }
  const looks: number[] = []
  const { position: end } = await db.log.head()
  for (let i = 0; i < 200; i++) {
    const began = performance.now()
    await db.log.read(end, 1000)
    looks.push(performance.now() - began)
  }
  await pool.end()
  return { lags: lags.sort((a, b) => a - b), looks: looks.sort((a, b) => a - b) }
}
