/**
 * What the runtime costs per message, on top of the work itself: an in-process source → router (three async
 * middlewares, acking) → sink, against a plain `for await` loop over the same batches that decodes and handles alike.
 */

import { event, type Handle, Message, type RawMessage, Router, type Source } from 'waybill'
import { type Delivery, Flow, OK, type Outcome } from 'waybill/adapter'
import { encodeData } from 'waybill/cloudevents'
import { sink } from 'waybill/pipes'
import { inChild } from './support/child.ts'
import { interleave, pairedDifference, summary } from './support/measure.ts'
import { atMost, type Bench, type Row, round } from './support/report.ts'

const Placed = event<{ order: string; total: number }>('order.placed')

/** How a contest is set up. */
interface Shape {
  readonly name: string
  readonly messages: number
  /** How many a take gives. */
  readonly batch: number
  readonly keys?: number
}

function messageOf(i: number, keys: number | undefined): RawMessage {
  const extensions = keys === undefined ? {} : { partitionkey: `k${i % keys}` }
  const attributes = { id: `m${i}`, source: '/orders', type: 'order.placed', extensions }
  return new Message(attributes, `{"order":"o-${i}","total":${i % 100}}`)
}

/** The next batch, made afresh for both contestants alike. */
function nextBatch({ batch, messages, keys }: Shape, from: number): Delivery[] {
  return Array.from({ length: Math.min(batch, messages - from) }, (_, i) => {
    const message = messageOf(from + i, keys)
    return { message, key: message.key, attempts: 0, size: 200 }
  })
}

/** What a handler does: little, and asynchronously, as most do. */
function newLedger(): { total: number; write: (order: { total: number }) => Promise<void> } {
  const ledger = {
    total: 0,
    async write(order: { total: number }) {
      ledger.total += order.total
    },
  }
  return ledger
}

async function* batches(shape: Shape): AsyncGenerator<Delivery[]> {
  for (let from = 0; from < shape.messages; from += shape.batch) yield nextBatch(shape, from)
}

async function plainLoop(shape: Shape): Promise<void> {
  const ledger = newLedger()
  for await (const batch of batches(shape)) {
    for (const { message } of batch) {
      const { data } = await Placed.decode(message)
      await ledger.write(data)
    }
  }
}

function sourceOf(shape: Shape, onSettled: (count: number) => void): Source {
  let from = 0
  return {
    name: 'bench',
    features: { redelivers: true, holdsKeys: true },
    open: async () => ({
      lost: new AbortController().signal,
      async take() {
        const batch = nextBatch(shape, from)
        from += batch.length
        return batch
      },
      async settle(batch) {
        onSettled(batch.length)
        return 0
      },
      async close() {},
    }),
  }
}

/** Runs a worker over the shape's messages until the last one is settled. */
async function toTheEnd(shape: Shape, make: (source: Source) => Flow): Promise<void> {
  let finish = () => {}
  const finished = new Promise<void>((resolve) => {
    finish = resolve
  })
  let settled = 0
  const source = sourceOf(shape, (count) => {
    settled += count
    if (settled === shape.messages) finish()
  })
  const worker = make(source)
  await worker.start()
  await finished
  await worker.stop()
}

const passing =
  (next: Handle): Handle =>
  async (message, context) =>
    next(message, context)

function routed(shape: Shape): Promise<void> {
  const ledger = newLedger()
  const router = new Router('bench').use(passing).use(passing).use(passing)
  router.on(Placed, ({ data }) => ledger.write(data))
  const room = { concurrency: Math.max(10, shape.batch), buffer: { count: 4 * shape.batch }, take: shape.batch }
  return toTheEnd(shape, (source) => router.consume(source, room))
}

const Sent = event<{ order: string }>('invoice.sent')

async function plainLoopSending(shape: Shape): Promise<void> {
  const to = sink(() => {})
  const { signal } = new AbortController()
  for await (const batch of batches(shape)) {
    const outputs: RawMessage[] = []
    for (const { message } of batch) {
      const { data } = await Placed.decode(message)
      outputs.push(encodeData(Sent({ order: data.order })))
    }
    await to.publish(outputs, signal)
  }
}

/** As `routed`, with a handler that returns a message, which the consumer sends to a sink before it acks. */
function routedSending(shape: Shape): Promise<void> {
  const router = new Router('bench').use(passing).use(passing).use(passing)
  router.on(Placed, async ({ data }) => Sent({ order: data.order }))
  const room = { concurrency: shape.batch, buffer: { count: 4 * shape.batch }, take: shape.batch }
  return toTheEnd(shape, (source) => router.consume(source, { ...room, to: sink(() => {}) }))
}

/** A publisher's batch call, as a relay makes it. */
async function publish(deliveries: readonly Delivery[]): Promise<Outcome[]> {
  return deliveries.map(() => OK)
}

async function plainBatches(shape: Shape): Promise<void> {
  for await (const batch of batches(shape)) await publish(batch)
}

function relayed(shape: Shape): Promise<void> {
  const step = { batch: publish, size: shape.batch, ordered: true }
  const room = { buffer: { count: 4 * shape.batch }, take: shape.batch }
  return toTheEnd(shape, (from) => new Flow({ name: 'bench', from, step, ...room }))
}

const ROUNDS = 12

/** Microseconds of CPU and of wall time per message that `ours` takes more than `plain`. */
async function contest(shape: Shape, plain: () => unknown, ours: () => unknown): Promise<{ row: Row; added: number }> {
  const samples = await interleave({ plain, ours }, { rounds: ROUNDS })
  const each = (values: readonly number[]) => values.map((ms) => (ms * 1000) / shape.messages)
  const of = (side: keyof typeof samples, what: 'cpuMs' | 'wallMs') => each(samples[side].map((one) => one[what]))
  const cpu = pairedDifference(of('ours', 'cpuMs'), of('plain', 'cpuMs'))
  const wall = pairedDifference(of('ours', 'wallMs'), of('plain', 'wallMs'))
  const row = {
    what: shape.name,
    messages: shape.messages,
    'plain µs': round(summary(of('plain', 'cpuMs')).median),
    'ours µs': round(summary(of('ours', 'cpuMs')).median),
    'added µs (cpu)': round(cpu.median),
    spread: `${round(cpu.low)}…${round(cpu.high)}`,
    'added µs (wall)': round(wall.median),
  }
  return { row, added: cpu.median }
}

export const bench: Bench = async ({ quick }) => {
  const shapes = {
    batches: { name: 'router, takes of 100', messages: 100_000, batch: 100 },
    keyed: { name: 'router, takes of 100, 2,000 keys', messages: 100_000, batch: 100, keys: 2000 },
    sending: { name: 'router, takes of 100, an output each', messages: 100_000, batch: 100 },
    single: { name: 'router, one by one', messages: 30_000, batch: 1 },
    relay: { name: 'batch step of 1000', messages: 200_000, batch: 1000 },
    relayKeyed: { name: 'batch step of 1000, 2,000 keys', messages: 200_000, batch: 1000, keys: 2000 },
  }
  const router = (shape: Shape) =>
    contest(
      shape,
      () => plainLoop(shape),
      () => routed(shape),
    )
  const relay = (shape: Shape) =>
    contest(
      shape,
      () => plainBatches(shape),
      () => relayed(shape),
    )
  const inBatches = await router(shapes.batches)
  const keyed = await router(shapes.keyed)
  const sending = await contest(
    shapes.sending,
    () => plainLoopSending(shapes.sending),
    () => routedSending(shapes.sending),
  )
  const single = await router(shapes.single)
  const relays = await relay(shapes.relay)
  const relaysKeyed = await relay(shapes.relayKeyed)
  const results = [inBatches, keyed, sending, single, relays, relaysKeyed].map(({ row }) => row)
  const goals = [
    atMost('flow.added_us_per_message', 1.5, inBatches.added),
    atMost('flow.added_us_with_outputs', 3, sending.added),
    atMost('flow.added_us_one_by_one', 6, single.added),
    atMost('flow.batch_us_per_message', 0.7, relays.added),
    atMost('flow.batch_keyed_us_per_message', 0.7, relaysKeyed.added),
  ]
  if (quick) return { results, goals }
  const memory = await inChild<{ total: number; seconds: number; earlyMb: number; mostMb: number }>(
    new URL('support/flow-memory.mjs', import.meta.url),
  )
  const row = {
    what: 'memory, slow sink',
    messages: memory.total,
    'ours µs': round((memory.seconds * 1e6) / memory.total),
    'MB after a tenth': Math.round(memory.earlyMb),
    'MB at most': Math.round(memory.mostMb),
  }
  return { results: [...results, row], goals: [...goals, atMost('flow.resident_mb', 150, memory.mostMb)] }
}
