import { isAscii } from '../../core/data.ts'
import { errorSummary, type RawMessage, WaybillError } from '../../core/index.ts'
import type { KafkaRecord } from '../../drivers/kafka/kafka.ts'
import { ONLY_FOR, sizeOf, textOf } from './encoding.ts'
import type { GroupSettings } from './group.ts'
import type { BadRecord, KafkaDelivery, Partition } from './partition.ts'

/** What is kept beside a record in hand, in bytes. */
const BESIDE = 96

/**
 * A record as it is handed out, or why nobody can handle it. Made when it is its turn and not when it was read: of the
 * thousands that wait, most would outlive the young generation of the heap, message and all.
 */
export function deliveryOf(settings: GroupSettings, from: Partition, record: KafkaRecord): KafkaDelivery | BadRecord {
  const { decode, order, attempts: limit } = settings
  const { spent } = from
  const attempts = spent?.offset === record.offset ? spent.attempts + 1 : 0
  let message: RawMessage
  try {
    message = decode(record, from.topic)
  } catch (error) {
    return { from, record, reason: errorSummary(error), attempts, message: undefined }
  }
  if (attempts >= limit) {
    const crashed = new WaybillError('CRASHED', 'whoever worked on it died or fell silent, again and again')
    return { from, record, reason: `${attempts} attempts: ${errorSummary(crashed)}`, attempts, message }
  }
  const key = order === 'partition' ? from.name : keyOf(record, message)
  const { topic } = from
  return { message, key, attempts, size: sizeOf(record) + BESIDE, topic, from, record, buried: false, out: false }
}

/** Sent back for one group, which is not this one. */
export function isForOthers({ headers }: KafkaRecord, group: string): boolean {
  const only = headers[ONLY_FOR]
  return only !== undefined && textOf(only) !== group
}

/** The key of the record, whoever wrote it; else that of the message. */
function keyOf({ key }: KafkaRecord, message: RawMessage): string | undefined {
  const ours = message.key
  if (key === null || key.length === 0 || (ours !== undefined && isAscii(key, ours))) return ours
  const bytes = Buffer.isBuffer(key) ? key : Buffer.from(key.buffer, key.byteOffset, key.byteLength)
  const text = bytes.toString()
  return text.includes('\ufffd') ? bytes.toString('base64') : text
}
