import { warnOnce } from '../../core/index.ts'
import { type KafkaAdmin, type KeptTopic, type NewTopic, refusal } from '../../drivers/kafka/kafka.ts'
import type { TopicShape } from './member.ts'

/** The server refuses the user, as clients say it. */
export const REFUSED_LOGIN = /SASLAuthenticationError|SASL_AUTHENTICATION_FAILED/

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

/** Warns once of settings of these topics that can lose messages; not without the right to read them. */
export async function warnOfTopics(where: string, admin: KafkaAdmin, topics: readonly string[], letters: boolean) {
  const kept = topics.length === 0 ? [] : await admin.kept?.(topics).catch(() => [])
  for (const topic of kept ?? []) for (const danger of dangersOf(topic, letters)) warnOnce(where, danger)
}

/** Settings that lose records which the server has acknowledged. `letters`: the topic is for dead letters. */
export function dangersOf({ topic, replication, settings }: KeptTopic, letters: boolean): string[] {
  const dangers: string[] = []
  const { 'cleanup.policy': policy = '', 'min.insync.replicas': inSync, 'retention.ms': retention = '-1' } = settings
  if (replication === 1) {
    dangers.push(`topic ${topic} has one copy (replication factor 1): what was acknowledged is lost with its broker`)
  } else if (inSync === '1') {
    dangers.push(
      `topic ${topic} has min.insync.replicas 1: what one broker alone has acknowledged is lost with it; set 2`,
    )
  }
  if (settings['unclean.leader.election.enable'] === 'true') {
    dangers.push(
      `topic ${topic} has unclean.leader.election.enable true: a broker that was behind may lead, and what it had not is lost`,
    )
  }
  if (policy.includes('compact')) {
    const lost = letters ? 'dead letters that nobody has looked at' : 'events that a group has not handled yet'
    dangers.push(`topic ${topic} is compacted: of records with one key only the last is kept, so ${lost} are removed`)
  }
  if (letters && policy.includes('delete') && Number(retention) >= 0) {
    const hours = Math.round(Number(retention) / 36_000) / 100
    dangers.push(`topic ${topic} removes dead letters after ${hours} h (retention.ms); set it to -1`)
  }
  return dangers
}
