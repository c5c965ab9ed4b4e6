/**
 * The ceiling: the same table read and emptied by a loop without retries, order, metrics, wake-up or recovery. It scans
 * what is pending, without what it has in flight (a cursor would be faster still, and lose what commits late), reads
 * ahead while it removes, and its removal is fenced, because without a fence there is nothing to compare.
 */
import pg from 'pg'
import { drain } from './pg-drain.ts'

const { url, events, cold = 0 } = JSON.parse(process.argv[2]!) as { url: string; events: number; cold?: number }
const BATCH = 1000

const SCAN = `SELECT sequence::text, event_id::text, topic, key, source, event_type, event_version::text,
  attributes::text, payload::text
FROM outbox WHERE state = 'ready' AND NOT sequence <@ (SELECT $1::text::int8multirange) ORDER BY outbox.sequence LIMIT $2::int`
const REMOVE = `WITH term AS (SELECT 1 FROM outbox_terms WHERE shard = -1 FOR SHARE)
DELETE FROM outbox WHERE sequence = ANY ($1::bigint[]) AND state = 'ready' AND EXISTS (SELECT 1 FROM term)`

const types = { getTypeParser: () => (text: string) => text }
const reader = new pg.Client({ connectionString: url, types: types as never })
const writer = new pg.Client({ connectionString: url })
await Promise.all([reader.connect(), writer.connect()])

type Event = [sequence: string, ...rest: string[]]

async function publish(messages: readonly object[]): Promise<number> {
  return messages.length
}

await drain({ events, cold }, async (onEvent) => {
  const flying = new Set<string>()
  const scan = async () => {
    const values = [`{${[...flying].join(',')}}`, BATCH]
    return (await reader.query({ name: 'scan', text: SCAN, values, rowMode: 'array' })).rows as Event[]
  }
  let removal: Promise<unknown> = Promise.resolve()
  const loop = async () => {
    for (let next = scan(); ; ) {
      const rows = await next
      if (rows.length === 0) break
      const range = `[${rows[0]![0]},${rows.at(-1)![0]}]`
      flying.add(range)
      next = scan()
      const messages = rows.map(([, id, topic, key, source, type, version, attributes, data]) => {
        return { id, topic, key, source, type, version, attributes: JSON.parse(attributes!), data }
      })
      const published = await publish(messages)
      await removal
      const values = [`{${rows.map(([sequence]) => sequence).join(',')}}`]
      removal = writer.query({ name: 'remove', text: REMOVE, values }).then(() => flying.delete(range))
      onEvent(published)
    }
  }
  const looping = loop()
  return async () => {
    await looping
    await removal
  }
})
await Promise.all([reader.end(), writer.end()])
