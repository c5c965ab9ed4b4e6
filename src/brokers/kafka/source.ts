import { checkAccess, onAbort, Unavailable } from '../../core/index.ts'
import type { Source } from '../../flow/index.ts'
import { type DeadLetterOptions, deadLettersOf, type KafkaDeadLetter, settleLetters } from './dead-letters.ts'
import { GroupMember, type GroupSettings } from './member.ts'
import type { KafkaDelivery } from './partition.ts'
import { KafkaSession } from './session.ts'
import { letterTopic, needTopics, REFUSED_LOGIN, warnOfTopics } from './setup.ts'

/** How long a member whose session was lost waits for the next one, before it leaves the group. */
const KEEP_ALIVE = 60_000

/** Only said of topics that are looked for. */
const ANY = { partitions: 1, replication: -1 }

/**
 * A consumer group, as a source. A member outlives its sessions: if it left after every rebalance and came again, that
 * would be the next rebalance, for everybody.
 */
export class KafkaSource implements Source<KafkaDelivery> {
  readonly name: string
  /** Kafka gives nothing again by itself: what is to be tried again waits in the flow, in front of its key. */
  readonly system = 'kafka'
  readonly features = {} as const
  readonly #settings: GroupSettings
  /** Members that wait for their next session, and how to end that. */
  readonly #idle = new Map<GroupMember, AbortController>()
  /** Partitions that a member left without a word: whatever is unsettled there, it was no crash. */
  #wereOurs: ReadonlySet<string> = new Set()

  constructor(name: string, settings: GroupSettings) {
    this.name = name
    this.#settings = settings
  }

  /** A user that the server refuses is an error of `start`; whatever may pass is waited for. */
  async check(signal: AbortSignal): Promise<void> {
    const { withAdmin, clock } = this.#settings
    await checkAccess(() => withAdmin(async () => {}), REFUSED_LOGIN, clock, signal)
  }

  async open(signal: AbortSignal): Promise<KafkaSession> {
    const member = this.#claim() ?? (await this.#join(signal))
    try {
      await member.ready(signal)
    } catch (error) {
      await this.#close(member)
      throw error
    }
    if (signal.aborted) {
      await this.#close(member)
      throw new Unavailable('stopped while waiting for partitions')
    }
    return new KafkaSession(this.#settings, member, (ended, lost) => this.#onEnd(ended, lost, signal))
  }

  /** How far the group is, partition by partition. */
  async stats(): Promise<readonly PartitionStats[]> {
    return await statsOf(this.#settings)
  }

  /** What the group gave up and nobody has dealt with, oldest first. Reads the whole dead-letter topic. */
  async deadLetters(options?: DeadLetterOptions): Promise<readonly KafkaDeadLetter[]> {
    return await deadLettersOf(this.#settings, options)
  }

  /**
   * Sends dead letters back to the end of their topics, with all their attempts; returns how many. Other groups of this
   * package pass them over; consumers of others see them again.
   */
  async rearm(letters: string | readonly string[]): Promise<number> {
    return await settleLetters(this.#settings, [letters].flat(), 'rearmed')
  }

  /** Strikes dead letters off the list. The records stay in their topic as long as it keeps any. */
  async discard(letters: string | readonly string[]): Promise<number> {
    return await settleLetters(this.#settings, [letters].flat(), 'discarded')
  }

  async #join(signal: AbortSignal): Promise<GroupMember> {
    const { withAdmin, where, topics, letters, create } = this.#settings
    await withAdmin(async (admin) => {
      const wanted = topics.map((topic) => ({ topic, ...(create ?? ANY) }))
      const dead = [...new Set(topics.map(letters))].map((topic) => letterTopic(topic, create ?? ANY))
      await needTopics(where, admin, [...wanted, ...dead], create !== undefined)
      await warnOfTopics(where, admin, topics, false)
      await warnOfTopics(
        where,
        admin,
        dead.map(({ topic }) => topic),
        true,
      )
    })
    if (signal.aborted) throw new Unavailable('stopped before it joined its group')
    const member = new GroupMember(this.#settings, this.#wereOurs)
    await member.join()
    return member
  }

  #claim(): GroupMember | undefined {
    for (const [member, waiting] of this.#idle) {
      this.#idle.delete(member)
      waiting.abort()
      if (member.end === undefined) return member
    }
    return undefined
  }

  async #onEnd(member: GroupMember, lost: boolean, signal: AbortSignal): Promise<void> {
    if (!lost || member.end !== undefined || signal.aborted) return await this.#close(member)
    this.#wereOurs = member.partitions
    const waiting = new AbortController()
    this.#idle.set(member, waiting)
    void this.#keepAlive(member, waiting, signal)
  }

  /** Whoever stops between two sessions closes neither: the member must go by itself. */
  async #keepAlive(member: GroupMember, waiting: AbortController, stopped: AbortSignal): Promise<void> {
    const forget = onAbort(stopped, () => waiting.abort())
    await this.#settings.clock.sleep(KEEP_ALIVE, waiting.signal)
    forget()
    if (this.#idle.delete(member)) await this.#close(member)
  }

  async #close(member: GroupMember): Promise<void> {
    const left = member.partitions
    this.#wereOurs = left
    await member.close()
    if (this.#wereOurs === left) this.#wereOurs = member.partitions
  }
}

/** How a group stands in one partition. */
export interface PartitionStats {
  readonly topic: string
  readonly partition: number
  /** The next record the group needs. */
  readonly committed: number
  /** The next record that will be published. */
  readonly end: number
  /** How many are not known to be handled: those that are unsettled, and those done behind one that is not, are among them. */
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
