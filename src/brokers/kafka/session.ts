import { telemetry, Wakeup, WaybillError } from '../../core/index.ts'
import { isRefusal, type OutgoingRecord } from '../../drivers/kafka/kafka.ts'
import type { Demand, Session, Settled } from '../../flow/index.ts'
import { Commits } from './commits.ts'
import { letterOf } from './dead-letters.ts'
import type { Generation } from './generation.ts'
import type { GroupSettings, Member, MemberListener } from './member.ts'
import type { BadRecord, KafkaDelivery, Partition } from './partition.ts'

/**
 * The work of one member in one generation. A rebalance ends it, unless nothing is in hand: then there is nothing that
 * could count in the wrong one, and it goes on in the next.
 */
export class KafkaSession implements Session<KafkaDelivery>, MemberListener {
  readonly cautious: boolean
  readonly #settings: GroupSettings
  readonly #member: Member
  readonly #onEnd: (member: Member, lost: boolean) => Promise<void>
  readonly #lost = new AbortController()
  readonly #wakeup: Wakeup
  readonly #commits: Commits
  /** How many are handed out and not settled. */
  #out = 0
  #closed = false
  #burying: Promise<void> | undefined

  constructor(settings: GroupSettings, member: Member, onEnd: (member: Member, lost: boolean) => Promise<void>) {
    this.#settings = settings
    this.#wakeup = new Wakeup(settings.clock)
    this.#commits = new Commits(settings.clock, () => this.#commit())
    this.#member = member
    this.#onEnd = onEnd
    this.cautious = member.generation?.cautious ?? false
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
      if (generation.bad.length > 0) await this.#bury(generation)
      if (this.#over || signal.aborted || generation !== this.#member.generation) return []
      given = generation.give(count, bytes)
    } while (given.length === 0 && generation.bad.length > 0)
    this.#out += given.length
    // The others cannot be committed past these. What fails here, the next take will tell.
    if (generation.bad.length > 0) await this.#bury(generation).catch(() => {})
    if (given.length > 0) this.#member.wake()
    // There is time to say what is done; and what nobody was given, because it was for others, is over too.
    else await this.#commits.now()
    return given
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
    const touched = new Set<Partition>()
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
    const { sender, group, letters } = this.#settings
    const dead: KafkaDelivery[] = []
    const written: OutgoingRecord[] = []
    for (const [delivery, settlement] of batch) {
      if (settlement.kind !== 'dead' || delivery.buried) continue
      const { from, record, attempts, message } = delivery
      const bad: BadRecord = { from, record, reason: settlement.reason, attempts: attempts + 1, message }
      dead.push(delivery)
      written.push(letterOf(bad, group, letters(from.topic)))
    }
    if (dead.length > 0) await sender.send(written)
    for (const delivery of dead) delivery.buried = true
    let done = 0
    for (const [{ from, record }, { kind }] of batch) {
      if (kind === 'done' || kind === 'dead') from.done(record.offset)
      if (kind === 'done') done++
    }
    // After a crash, each that is known to be done is one fewer that may have caused it.
    if (done < batch.length || this.cautious) await this.#commits.now()
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

  async note(delivery: KafkaDelivery): Promise<void> {
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
    // What is in hand belongs to a generation that is over.
    if (this.#out > 0) this.#lose(new WaybillError('REBALANCED', reason))
  }

  /** The flow asks for caution when it opens a session, and only then. */
  began({ cautious }: Generation): void {
    if (cautious)
      this.#lose(new WaybillError('REBALANCED', 'somebody of the group fell silent with partitions that are ours now'))
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

  /** To the dead letters, each on its own account. */
  async #bury(generation: Generation): Promise<void> {
    this.#burying ??= this.#buryAll(generation).finally(() => {
      this.#burying = undefined
    })
    await this.#burying
  }

  async #buryAll(generation: Generation): Promise<void> {
    const { sender, group, letters, where } = this.#settings
    while (generation.bad.length > 0 && !this.#over) {
      const bad = generation.bad[0]!
      await sender.send([letterOf(bad, group, letters(bad.from.topic))])
      generation.bad.shift()
      bad.from.done(bad.record.offset)
      const { message, reason, attempts } = bad
      const id = message?.id ?? `${bad.from.topic}/${bad.from.partition}/${bad.record.offset}`
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
