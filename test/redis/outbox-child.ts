/**
 * A relay, or a writer, in a process of its own, to be killed and suspended; told what to do by JOB. With `points` every
 * script it runs has a crash point before it and one after it.
 */
import { Redis as IoRedis } from 'ioredis'
import { type Message, telemetry } from '../../src/core/index.ts'
import { redisOf } from '../../src/drivers/redis/recognise.ts'
import type { RedisClient, RedisConnection } from '../../src/drivers/redis/redis.ts'
import { type OutboxReader, Relay, type RelayOptions } from '../../src/outbox/index.ts'
import { type RedisTagStore, redis, redisOutbox } from '../../src/redis/index.ts'
import { crashingPublisher, crashPoint } from '../../src/testing/index.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { Journal, journalPublisher } from '../postgres/faults/journal.ts'

export interface OutboxJob {
  readonly role: 'relay' | 'writer'
  readonly url: string
  readonly tags: readonly string[]
  readonly name: string
  readonly journal: string
  readonly relay?: Partial<RelayOptions>
  /** How long each publish takes, in milliseconds. */
  readonly delay?: number
  readonly points?: boolean
  /** Publishing this event kills the process. */
  readonly poison?: string
  /** How many events a writer commits, and in how many keys. */
  readonly count?: number
  readonly keys?: number
}

/** What a writer commits beside each event: its id in a set. Both or neither. */
export async function write(
  db: Pick<RedisTagStore, 'withTransaction' | 'key'>,
  outbox: ReturnType<typeof redisOutbox>,
  events: readonly Message[],
): Promise<void> {
  await db.withTransaction(async (tx) => {
    tx.sadd(db.key('ledger'), ...events.map(({ id }) => id))
    await outbox.enqueue(tx, events)
  })
}

function crashing(client: object): RedisClient {
  const real = redisOf(client)
  const wrap = (connection: RedisConnection): RedisConnection => ({
    get lost() {
      return connection.lost
    },
    command: (args, options) => connection.command(args, options),
    pipeline: (commands, options) => connection.pipeline(commands, options),
    close: () => connection.close(),
    async script(script, keys, args) {
      crashPoint(`before ${script.name}`)
      const reply = await connection.script(script, keys, args)
      crashPoint(`after ${script.name}`)
      return reply
    },
  })
  return {
    driver: real.driver,
    cluster: real.cluster,
    keyPrefix: real.keyPrefix,
    connect: async (options) => wrap(await real.connect(options)),
  }
}

async function main(job: OutboxJob): Promise<void> {
  const client = () => {
    const given = new IoRedis(job.url, { lazyConnect: true })
    return job.points ? crashing(given) : given
  }
  const stores = job.tags.map((tag) => redis({ client: client(), tag }))
  const outbox = redisOutbox({ on: stores })
  if (job.role === 'writer') {
    const { count = 4, keys = 2 } = job
    console.log('started')
    for (let n = 0; n < count; n++) {
      const event = sample(n, { key: `key ${n % keys}` })
      if (n % 4 === 3) await outbox.enqueueAlone(event)
      else await write(outbox.storeOf(event.key!), outbox, [event])
    }
    process.exit(0)
  }
  const journal = new Journal(job.journal)
  const { name: relay } = job
  telemetry['flow.opened'].subscribe(() => journal.write({ what: 'opened', relay }))
  telemetry['flow.lost'].subscribe(() => journal.write({ what: 'lost', relay }))
  telemetry['message.dead'].subscribe(({ id }) => journal.write({ what: 'dead', relay, id }))
  telemetry['flow.settled'].subscribe(({ stale }) => journal.write({ what: 'settled', relay, stale }))
  const publisher = journalPublisher(journal, {
    relay,
    delay: job.delay ?? 0,
    during: (messages) => {
      if (messages.some(({ id }) => id === job.poison)) process.kill(process.pid, 'SIGKILL')
    },
  })
  const to = job.points ? crashingPublisher(publisher, 'relay') : publisher
  const options = { poll: '20ms', maxPoll: '50ms', ...job.relay } as const
  const worker = new Relay({ from: outbox as OutboxReader, to, ...options, name: relay })
  await worker.start()
  console.log('started')
  process.on('SIGTERM', async () => {
    await worker.stop()
    for (const store of stores) await store.stop()
    console.log('stopped')
    process.exit(0)
  })
}

if (process.env['JOB'] !== undefined) await main(JSON.parse(process.env['JOB']) as OutboxJob)
