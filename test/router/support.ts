import { afterEach } from 'vitest'
import { encodeData, event, type Message, type RawMessage } from '../../src/core/index.ts'
import type { Settlement, Worker } from '../../src/flow/index.ts'
import type { ConsumeOptions, Context, Router } from '../../src/router/index.ts'
import {
  FakeClock,
  recordTelemetry,
  type Scripted,
  type ScriptedSource,
  scriptedSource,
  type TelemetryRecorder,
} from '../../src/testing/index.ts'

export const Placed = event<{ order: string }>('order.placed')
export const Paid = event<{ order: string }>('order.paid')
export const Sent = event<{ order: string }>('invoice.sent')

let count = 0

/** A message as it comes from a broker: encoded. */
export function raw(made: Message = Placed({ order: `o${count++}` })): RawMessage {
  return encodeData(made)
}

export const redelivering = { features: { redelivers: true } }

/** Runs one batch of messages through the router; how each was settled, by its place. */
export async function consume(
  router: Router<never> | Router,
  messages: readonly Scripted[],
  options: ConsumeOptions = {},
): Promise<{ settlements: (Settlement | undefined)[]; kinds: (string | undefined)[]; source: ScriptedSource }> {
  const source = scriptedSource([messages], redelivering)
  const consumer = (router as Router).consume(source, { clock: new FakeClock(), ...options })
  await consumer.runOnce()
  await consumer.stop()
  const settlements = messages.map((one) => source.settlementOf(idOf(one)))
  return { settlements, kinds: settlements.map((settlement) => settlement?.kind), source }
}

function idOf(one: Scripted): string {
  if (one instanceof Error) return ''
  return 'message' in one ? one.message.id : one.id
}

/** A context for calling a router or a middleware directly. */
export function context(changes: Partial<Context> = {}): Context {
  const { signal } = new AbortController()
  return { signal, attempt: 1, router: 'test', ack: () => true, nack: () => true, ...changes }
}

const recorders: TelemetryRecorder[] = []
const workers: Worker[] = []

export function record(): TelemetryRecorder {
  const recorder = recordTelemetry()
  recorders.push(recorder)
  return recorder
}

/** Starts a worker, which is stopped when the test ends. */
export async function started<W extends Worker>(worker: W): Promise<W> {
  workers.push(worker)
  await worker.start()
  return worker
}

afterEach(async () => {
  for (const recorder of recorders.splice(0)) recorder.stop()
  await Promise.all(workers.splice(0).map((worker) => worker.stop()))
})
