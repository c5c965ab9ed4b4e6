/**
 * Who gets which partitions, decided by the leader of the group. The one of kafkajs deals out the leader's own topics
 * to everybody: where members of a group read different topics, some are read by nobody and nobody says so. This one
 * has the same name and speaks the same format, so that members with and without it may meet in a group.
 */

interface AssignerCluster {
  addMultipleTargetTopics(topics: string[]): Promise<void>
  findTopicPartitionMetadata(topic: string): { partitionId: number }[]
}

interface SubscribedMember {
  memberId: string
  memberMetadata: Buffer
}

const VERSION = 0
const NAME = 'RoundRobinAssigner'

export function subscriptionAssigner({ cluster }: { cluster: AssignerCluster }) {
  return {
    name: NAME,
    version: VERSION,
    protocol: ({ topics }: { topics: string[] }) => ({ name: NAME, metadata: subscription(topics) }),
    async assign({ members }: { members: SubscribedMember[] }) {
      const readers = members
        .map(({ memberId, memberMetadata }) => ({ memberId, topics: topicsOf(memberMetadata) }))
        .sort((a, b) => (a.memberId < b.memberId ? -1 : 1))
      const topics = [...new Set(readers.flatMap((reader) => reader.topics))].sort()
      const partitions = new Map<string, number[]>()
      for (const topic of topics) partitions.set(topic, await partitionsOf(cluster, topic))
      return dealOut(readers, partitions).map(([memberId, assigned]) => ({
        memberId,
        memberAssignment: assignment(assigned),
      }))
    },
  }
}

/** Each partition to whoever reads its topic and has the fewest. */
export function dealOut(
  readers: readonly { readonly memberId: string; readonly topics: readonly string[] }[],
  partitions: ReadonlyMap<string, readonly number[]>,
): [memberId: string, assigned: Map<string, number[]>][] {
  const hands = readers.map(({ memberId, topics }) => ({
    memberId,
    topics,
    count: 0,
    assigned: new Map<string, number[]>(),
  }))
  for (const [topic, numbers] of partitions) {
    const able = hands.filter((hand) => hand.topics.includes(topic))
    for (const number of numbers) {
      const hand = able.reduce((least, other) => (other.count < least.count ? other : least), able[0]!)
      hand.count++
      hand.assigned.set(topic, [...(hand.assigned.get(topic) ?? []), number])
    }
  }
  return hands.map(({ memberId, assigned }) => [memberId, assigned])
}

/** A topic that somebody wants and that is gone has none. */
async function partitionsOf(cluster: AssignerCluster, topic: string): Promise<number[]> {
  try {
    await cluster.addMultipleTargetTopics([topic])
    return cluster
      .findTopicPartitionMetadata(topic)
      .map(({ partitionId }) => partitionId)
      .sort((a, b) => a - b)
  } catch (error) {
    if (/UNKNOWN_TOPIC|INVALID_TOPIC|TOPIC_AUTHORIZATION/.test(String((error as { type?: unknown }).type))) return []
    throw error
  }
}

/** The consumer protocol: version, topics, user data. */
function subscription(topics: readonly string[]): Buffer {
  return Buffer.concat([int16(VERSION), int32(topics.length), ...topics.map(text), int32(0)])
}

function topicsOf(metadata: Buffer): string[] {
  const topics: string[] = []
  for (let i = 0, at = 6; i < metadata.readInt32BE(2); i++) {
    const length = metadata.readInt16BE(at)
    topics.push(metadata.toString('utf8', at + 2, at + 2 + length))
    at += 2 + length
  }
  return topics
}

function assignment(assigned: ReadonlyMap<string, readonly number[]>): Buffer {
  const topics = [...assigned].map(([topic, numbers]) =>
    Buffer.concat([text(topic), int32(numbers.length), ...numbers.map(int32)]),
  )
  return Buffer.concat([int16(VERSION), int32(topics.length), ...topics, int32(0)])
}

function text(value: string): Buffer {
  const bytes = Buffer.from(value)
  return Buffer.concat([int16(bytes.length), bytes])
}

function int16(value: number): Buffer {
  const bytes = Buffer.alloc(2)
  bytes.writeInt16BE(value)
  return bytes
}

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeInt32BE(value)
  return bytes
}
