import { encodeData, Message, uuidv7, WaybillError } from '../core/index.ts'
import { type Outputs, outputList } from '../router/index.ts'
import { SAGA } from '../router/replies.ts'
import type { CleanOptions } from './inbox.ts'

/** The work of a saga's step, or its undo. */
export type BarrierOperation = 'run' | 'undo'

/** What a participant learns before it does something. */
export interface BarrierAnswer {
  /** Do it. Otherwise it was done, or undone, before. */
  readonly go: boolean
  /** The work of this key was done here, and is committed. */
  readonly ran: boolean
  /** JSON: what was stored of the same operation, when it was done before. */
  readonly output: unknown
}

/**
 * What was run and what was undone for the keys of sagas, in the participant's own transaction: a run happens once, an undo
 * once; an undo that comes first leaves a tombstone, and the run that comes after it is refused.
 */
export interface Barriers<Tx = unknown> {
  readonly name: string
  /** Waits for another transaction that is at the same key. */
  enter(tx: Tx, key: string, operation: BarrierOperation): Promise<BarrierAnswer>
  /** Stores what is returned when it is asked again. JSON. */
  leave(tx: Tx, key: string, operation: BarrierOperation, output: unknown): Promise<void>
  /** Forgets what is older than the retention; returns how many keys. */
  clean(options?: CleanOptions): Promise<number>
}

/** What `fn` is given. `ran`: the work of this key was done here before; an undo may find that it was not. */
export interface BarrierContext {
  readonly ran: boolean
}

/** What a participant does about a request of a saga, or its undo. Returns its replies, and whatever else goes out. */
export type BarrierFunction = (c: BarrierContext) => Outputs | Promise<Outputs>

/**
 * Runs `fn` unless it was done before. A repeated request gets the same replies again, or its saga would wait for ever; a
 * request after its undo does nothing. An undo without a run calls `fn` too, with `ran: false`: a run that was rolled back
 * leaves no record, and may have had effects outside.
 */
export async function throughBarrier<Tx>(
  barriers: Barriers<Tx>,
  tx: Tx,
  message: Message,
  fn: BarrierFunction,
): Promise<readonly Message[]> {
  const { key, operation } = requestOf(message)
  const { go, ran, output } = await barriers.enter(tx, key, operation)
  if (!go) return Array.isArray(output) ? output.map(revived) : []
  const outputs = outputList(await fn({ ran }))
  const expected = String(message.extensions[SAGA.replies] ?? '').split(' ')
  // Only replies: other events were published once, and that is enough.
  const replies = outputs.filter(({ type }) => expected.includes(type))
  await barriers.leave(tx, key, operation, replies.map(stored))
  return outputs
}

function requestOf(message: Message): { key: string; operation: BarrierOperation } {
  const { [SAGA.key]: key, [SAGA.undo]: undo } = message.extensions
  if (typeof key === 'string' && key !== '') return { key, operation: undo === undefined ? 'run' : 'undo' }
  const text = `${message}: it is not the request of a saga: it has no ${SAGA.key}`
  throw new WaybillError('MALFORMED_MESSAGE', text)
}

interface StoredReply {
  readonly type: string
  readonly source: string
  readonly subject?: string | undefined
  readonly datacontenttype?: string | undefined
  readonly dataschema?: string | undefined
  readonly extensions: Record<string, string | number | boolean>
  readonly data: string
  readonly bytes: boolean
}

function stored(reply: Message): StoredReply {
  const { type, source, subject, datacontenttype, dataschema, extensions, data } = encodeData(reply)
  const plain = Object.entries(extensions).filter(([, value]) => !(value instanceof Uint8Array))
  const bytes = typeof data !== 'string'
  return {
    ...{ type, source, subject, datacontenttype, dataschema },
    extensions: Object.fromEntries(plain) as StoredReply['extensions'],
    data: bytes ? Buffer.from(data).toString('base64') : data,
    bytes,
  }
}

/** With an id of its own: the inbox of the saga's service would take the same for a repeat. */
function revived({ data, bytes, ...attributes }: StoredReply): Message {
  const time = new Date().toISOString()
  return new Message({ ...attributes, id: uuidv7(), time }, bytes ? Buffer.from(data, 'base64') : data, 'raw')
}
