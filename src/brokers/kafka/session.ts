import { errorSummary, telemetry, Unavailable, Wakeup, WaybillError } from '../../core/index.ts'
import { isRefusal } from '../../drivers/kafka/kafka.ts'
import type { Demand, Session, Settled } from '../../flow/index.ts'
import { OffsetCommits } from './commits.ts'
import { placeOf, writeDeadLetters } from './dead-letter-writer.ts'
import type { Generation } from './generation.ts'
import type { GroupMember, GroupSettings, MemberListener } from './member.ts'
import type { AssignedPartition, BadRecord, KafkaDelivery } from './partition.ts'

/** How often dead letters that cannot be written are tried again, in milliseconds. */
const LETTERS_EVERY = 1000

/**
 * The work of one member in one generation. A rebalance ends it, unless nothing is unsettled: then there is nothing that
 * could count in the wrong one, and it goes on in the next.
 */
export class KafkaSession implements Session<KafkaDelivery>, MemberListener {
  readonly afterCrash: boolean
  readonly #settings: GroupSettings
  readonly #member: GroupMember
  readonly #onEnd: (member: GroupMember, lost: boolean) => Promise<void>
  readonly #lost = new AbortController()
  readonly #wakeup: Wakeup
  readonly #commits: OffsetCommits
  /** How many are handed out and not settled. */
  #out = 0
  #closed = false
  #deadLettering: Promise<void> | undefined
  /** Why dead letters cannot be written at present. */
  #trouble: unknown
  /** A take has rejected with that, and none has returned since. */
  #reported = false

  constructor(
    settings: GroupSettings,
    member: GroupMember,
    onEnd: (member: GroupMember, lost: boolean) => Promise<void>,
  ) {
    this.#settings = settings
    this.#wakeup = new Wakeup(settings.clock)
    this.#commits = new OffsetCommits(settings.clock, () => this.#commit())
    this.#member = member
    this.#onEnd = onEnd
    this.afterCrash = member.generation?.afterCrash ?? false
    member.listener = this
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  live(): boolean {
    return this.#member.live
  }

  async take({ count, bytes }: Demand, signal: AbortSignal): Promise<readonly KafkaDelivery[]> {
    const { generation } = this.#member
    if (this.#over || signal.aborted || generation === undefined) return []
    let given: KafkaDelivery[]
    do {
      await this.#putBadAside(generation)
      if (this.#over || signal.aborted || generation !== this.#member.generation) return []
      given = generation.give(count, bytes)
      if (given.length === 0 && this.#trouble !== undefined) await this.#troubled(generation, signal)
    } while (given.length === 0 && generation.bad.length > 0)
    this.#reported = false
    this.#out += given.length
    await this.#putBadAside(generation)
    await this.#member.readOn()
    // There is time to say what is done; and what nobody was given, because it was for others, is over too.
    if (given.length === 0) await this.#commits.now()
    return given
  }

  /**
   * Nothing is left but what no dead letter can be written for. A take rejects with that once, and the next ones wait here:
   * in the pause after a failed take nobody would look at what comes meanwhile.
   */
  async #troubled(generation: Generation, signal: AbortSignal): Promise<void> {
    if (!this.#reported) {
      this.#reported = true
      throw this.#trouble
    }
    // What was passed over in other partitions has made room there.
    await this.#member.readOn()
    if (generation.waiting === 0) await this.#wakeup.pause(LETTERS_EVERY, signal)
  }

  async wait(ms: number, signal: AbortSignal): Promise<void> {
    const { clock } = this.#settings
    const until = clock.monotonic() + ms
    while (!this.#over && !signal.aborted && !this.#something) {
      const left = until - clock.monotonic()
      if (left <= 0) return
      await this.#wakeup.pause(left, signal)
    }
  }

  async settle(batch: readonly Settled<KafkaDelivery>[]): Promise<number> {
    const { generation } = this.#member
    if (this.#over || generation === undefined) return batch.length
    const ours = batch.every(([{ from }]) => generation.has(from))
      ? batch
      : batch.filter(([{ from }]) => generation.has(from))
    await this.#write(ours)
    if (this.#over) return batch.length
    const touched = new Set<AssignedPartition>()
    for (const [delivery, settlement] of ours) {
      const { from } = delivery
      touched.add(from)
      if (!delivery.out) continue
      delivery.out = false
      this.#out--
      if (settlement.kind === 'done') continue
      if (settlement.kind === 'retry' && settlement.charged) delivery.attempts++
      if (settlement.kind !== 'dead') from.giveBack(delivery)
    }
    for (const from of touched) await this.#member.balance(from)
    this.#member.wake()
    return batch.length - ours.length
  }

  /** Dead letters first, and only when they are there the offsets. */
  async #write(batch: readonly Settled<KafkaDelivery>[]): Promise<void> {
    const dead: KafkaDelivery[] = []
    const bad: BadRecord[] = []
    for (const [delivery, settlement] of batch) {
      if (settlement.kind !== 'dead' || delivery.deadLettered) continue
      const { from, record, attempts, message } = delivery
      dead.push(delivery)
      bad.push({ from, record, reason: settlement.reason, attempts: attempts + 1, message })
    }
    if (dead.length > 0) {
      await writeDeadLetters(this.#settings, bad, (at) => {
        dead[at]!.deadLettered = true
      })
    }
    let done = 0
    for (const [{ from, record }, { kind }] of batch) {
      if (kind === 'done' || kind === 'dead') from.done(record.offset)
      if (kind === 'done') done++
    }
    // After a crash, each that is known to be done is one fewer that may have caused it.
    if (done < batch.length || this.afterCrash) await this.#commits.now()
    else await this.#commits.done(done)
  }

  async #commit(): Promise<void> {
    try {
      await this.#member.generation?.commit()
    } catch (error) {
      if (!isRefusal(error, 'STALE_GENERATION')) throw error
      this.#lose(error)
    }
  }

  async recordProbe(delivery: KafkaDelivery): Promise<void> {
    const { generation } = this.#member
    const { from, record, attempts } = delivery
    if (this.#over || generation === undefined || !generation.has(from)) return
    from.alone = { offset: record.offset, attempts }
    from.dirty = true
    await this.#commits.now()
  }

  async close(): Promise<void> {
    if (this.#closed) return
    const lost = this.#lost.signal.aborted
    this.#closed = true
    const ended = this.#commits.end()
    this.wake()
    this.#member.listener = undefined
    // Who is lost may wait for ever, and has nothing more to say.
    if (!lost) await ended
    await this.#onEnd(this.#member, lost)
  }

  wake(): void {
    this.#wakeup.wake()
  }

  revoked(reason: string): void {
    // What is unsettled belongs to a generation that is over.
    if (this.#out > 0) this.#lose(new WaybillError('REBALANCED', reason))
  }

  /** The flow asks for caution when it opens a session, and only then. */
  began({ afterCrash }: Generation): void {
    if (afterCrash)
      this.#lose(
        new WaybillError('REBALANCED', 'a member of the group stopped responding, and its partitions are ours now'),
      )
  }

  ended(error: unknown): void {
    this.#lose(error)
  }

  get #over(): boolean {
    return this.#closed || this.#lost.signal.aborted
  }

  get #something(): boolean {
    const { generation } = this.#member
    return generation !== undefined && (generation.waiting > 0 || generation.bad.length > 0)
  }

  /**
   * What nobody can handle goes to the dead letters, since nothing can be committed past it. Where these cannot be written
   * the others are handled meanwhile, as far as it is read ahead.
   */
  async #putBadAside(generation: Generation): Promise<void> {
    if (generation.bad.length === 0) {
      // They are written, or another member has them since a rebalance.
      this.#trouble = undefined
      return
    }
    const before = this.#trouble
    const writing = this.#deadLetter(generation).then(
      () => {
        this.#trouble = undefined
        this.wake()
      },
      (error: unknown) => {
        if (this.#trouble === undefined && !(error instanceof Unavailable)) this.#publishTrouble(error)
        this.#trouble = error
      },
    )
    if (before === undefined || (generation.waiting === 0 && !this.#reported)) await writing
  }

  #publishTrouble(error: unknown): void {
    const { where } = this.#settings
    const message = `dead letters cannot be written, so nothing is committed past a record that cannot be decoded: ${errorSummary(error)}`
    telemetry.warning.publish({ where, message })
  }

  /** To the dead letters, each on its own account. */
  async #deadLetter(generation: Generation): Promise<void> {
    this.#deadLettering ??= this.#deadLetterAll(generation).finally(() => {
      this.#deadLettering = undefined
    })
    await this.#deadLettering
  }

  async #deadLetterAll(generation: Generation): Promise<void> {
    const { where } = this.#settings
    while (generation.bad.length > 0 && !this.#over) {
      const bad = generation.bad[0]!
      await writeDeadLetters(this.#settings, [bad], () => generation.bad.shift())
      bad.from.done(bad.record.offset)
      const { message, reason, attempts } = bad
      const id = message?.id ?? placeOf(bad)
      const about = {
        type: message?.type ?? '',
        id,
        reason,
        attempt: attempts + 1,
        tenant: message?.tenant,
        topic: bad.from.topic,
      }
      telemetry['message.dead'].publish({ flow: where, ...about })
    }
    await this.#commits.now()
  }

  #lose(reason: unknown): void {
    if (this.#over) return
    void this.#commits.end()
    this.#lost.abort(reason)
    this.wake()
  }
}
