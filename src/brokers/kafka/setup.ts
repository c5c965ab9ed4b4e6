import { type KafkaAdmin, type NewTopic, refusal } from '../../drivers/kafka/kafka.ts'
import type { TopicShape } from './member.ts'

/**
 * Dead letters are kept until a person has looked at them, and have more to say than the records they were. One
 * partition: they are few, and read in order.
 */
export function letterTopic(topic: string, { replication }: TopicShape): NewTopic {
  const settings = { 'retention.ms': '-1', 'max.message.bytes': String(16 * 1024 * 1024) }
  return { topic, partitions: 1, replication, settings }
}

/** Topics that must be there: made where that was asked for, or else an error that names those that are not. */
export async function needTopics(
  where: string,
  admin: KafkaAdmin,
  wanted: readonly NewTopic[],
  create: boolean,
): Promise<void> {
  const there = await admin.partitions(wanted.map(({ topic }) => topic))
  const missing = wanted.filter(({ topic }) => !there.has(topic))
  if (missing.length === 0) return
  if (create) return await admin.create(missing)
  const names = missing.map(({ topic }) => JSON.stringify(topic)).join(', ')
  const text = `${where}: there is no topic ${names}; create it, or let it be created with create: { partitions, replication }`
  throw refusal('UNKNOWN_TOPIC', text)
}
