/**
 * One who publishes, in a process of its own: our relay, or a bare loop with the same guarantee, which reads the same
 * table and removes what the broker has confirmed, fenced; or a loop that publishes from memory, which has lost
 * everything when it ends, and shows what the outbox costs.
 */
import pg from 'pg'
import * as client from 'prom-client'
import { Relay, type RelayOptions } from 'waybill'
import { recordMetrics } from 'waybill/observability'
import { postgres } from 'waybill/postgres'
import { brokerNamed } from './all.ts'
import type { BareEvent } from './broker.ts'
import { bareEvents, inParts } from './messages.ts'
import { serveRounds } from './rounds.ts'

export interface PublishOptions {
  readonly broker: string
  readonly side: 'ours' | 'bare' | 'memory'
  readonly tuned: boolean
  /** Of the broker, and of the outbox. */
  readonly url: string
  readonly database: string
  readonly relay?: Omit<RelayOptions, 'from' | 'to'>
}

const { broker: name, side, tuned, url, database, relay: options } = JSON.parse(process.argv[2]!) as PublishOptions
const broker = brokerNamed(name)
const BATCH = 1000
/** Batches on their way at once, as a relay has it. */
const AT_ONCE = 2

const SCAN = `SELECT sequence::text, event_id::text, topic, key, source, event_type, event_version::text,
  attributes::text, payload::text
FROM outbox WHERE state = 'ready' AND NOT sequence <@ (SELECT $1::text::int8multirange) ORDER BY outbox.sequence LIMIT $2::int`
const REMOVE = `WITH term AS (SELECT 1 FROM outbox_terms WHERE shard = -1 FOR SHARE)
DELETE FROM outbox WHERE sequence = ANY ($1::bigint[]) AND state = 'ready' AND EXISTS (SELECT 1 FROM term)`

if (side === 'ours') await ours()
else if (side === 'bare') await bare()
else await fromMemory()

async function ours(): Promise<void> {
  recordMetrics({ client: client as never })
  const pool = new pg.Pool({ connectionString: database, max: 10 })
  const publisher = broker.publisher(url, tuned)
  await publisher.start?.()
  await serveRounds({}, async (_, watch) => {
    const publish = async (...args: Parameters<typeof publisher.publish>) => {
      const outcomes = await publisher.publish(...args)
      for (const { kind } of outcomes) if (kind !== 'ok') throw new Error(`an event was not published: ${kind}`)
      watch.done(outcomes.length)
      return outcomes
    }
    const to = { name: publisher.name, features: publisher.features, publish }
    watch.begin()
    const relay = new Relay({ from: postgres({ pool }).outbox, to, ...options })
    await relay.start()
    await watch.all
    await relay.stop()
    // Now all of it is settled too.
    watch.end()
  })
  await publisher.close?.()
  await pool.end()
}

type Row = [sequence: string, ...rest: string[]]

async function bare(): Promise<void> {
  const types = { getTypeParser: () => (text: string) => text }
  const reader = new pg.Client({ connectionString: database, types: types as never })
  const writer = new pg.Client({ connectionString: database })
  await Promise.all([reader.connect(), writer.connect()])
  const publisher = await broker.barePublisher(url)
  await serveRounds({}, async (_, watch) => {
    watch.begin()
    const flying = new Set<string>()
    const scan = async () => {
      const values = [`{${[...flying].join(',')}}`, BATCH]
      return (await reader.query({ name: 'scan', text: SCAN, values, rowMode: 'array' })).rows as Row[]
    }
    const send = async (rows: readonly Row[], range: string) => {
      await publisher.publish(rows.map(eventOf))
      const values = [`{${rows.map(([sequence]) => sequence).join(',')}}`]
      await writer.query({ name: 'remove', text: REMOVE, values })
      flying.delete(range)
      watch.done(rows.length)
    }
    const sending = new Set<Promise<void>>()
    for (let next = scan(); ; ) {
      const rows = await next
      if (rows.length === 0) break
      const range = `[${rows[0]![0]},${rows.at(-1)![0]}]`
      flying.add(range)
      next = scan()
      if (sending.size >= AT_ONCE) await Promise.race(sending)
      const sent = send(rows, range).then(() => void sending.delete(sent))
      sending.add(sent)
    }
    await Promise.all(sending)
  })
  await publisher.close()
  await Promise.all([reader.end(), writer.end()])
}

function eventOf([, id, topic, key, source, type, version, attributes, data]: Row): BareEvent {
  const { time } = JSON.parse(attributes!) as { time: string }
  return { id: id!, topic: topic!, key: key!, source: source!, type: type!, version: version!, time, data: data! }
}

async function fromMemory(): Promise<void> {
  const publisher = await broker.barePublisher(url)
  await serveRounds({}, async (round, watch) => {
    const events = bareEvents(round.events)
    watch.begin()
    await inParts(events, { size: BATCH, at: AT_ONCE }, async (part) => {
      await publisher.publish(part)
      watch.done(part.length)
    })
  })
  await publisher.close()
}
