import type { GroupSettings } from './group.ts'

/** How a group stands in one partition. */
export interface PartitionStats {
  readonly topic: string
  readonly partition: number
  /** The next record the group needs. */
  readonly committed: number
  /** The next record that will be published. */
  readonly end: number
  /** How many are not known to be handled: those in hand, and those done behind one that is not, are among them. */
  readonly lag: number
}

export async function statsOf({ group, topics, withAdmin }: GroupSettings): Promise<PartitionStats[]> {
  return await withAdmin(async (admin) => {
    const offsets = await admin.committed(group, topics)
    const all: PartitionStats[] = []
    for (const topic of topics) {
      for (const { partition, low, high } of await admin.bounds(topic)) {
        const found = offsets.find((one) => one.topic === topic && one.partition === partition)
        const committed = found?.offset ?? low
        all.push({ topic, partition, committed, end: high, lag: Math.max(0, high - committed) })
      }
    }
    return all
  })
}
