import type { Clock } from '../core/index.ts'
import type { Leadership, Term } from '../outbox/leadership.ts'
import type { Holder } from '../outbox/waiting.ts'

interface Held {
  epoch: number
  holder: string
  expiresAt: number
  note: string | undefined
}

/** Leadership among the relays of one process, by the same rules as among many machines. */
export class MemoryLeadership implements Leadership {
  readonly #clock: Clock
  readonly #members = new Map<string, { readonly mode: string; readonly expiresAt: number }>()
  readonly #terms = new Map<number, Held>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async join(member: string, mode: string, lease: number): Promise<string | undefined> {
    for (const [name, other] of this.#live()) if (name !== member && other.mode !== mode) return other.mode
    this.#members.set(member, { mode, expiresAt: this.#clock.now() + lease })
    return undefined
  }

  async leave(member: string): Promise<void> {
    this.#members.delete(member)
  }

  async members(): Promise<readonly string[]> {
    return this.#live()
      .map(([name]) => name)
      .sort()
  }

  /** In which modes live relays read at present. */
  async modes(): Promise<readonly string[]> {
    return [...new Set(this.#live().map(([, { mode }]) => mode))]
  }

  /** Who keeps a relay of this mode out. */
  otherMode(member: string, mode: string): Holder | undefined {
    const others = this.#live().filter(([name, { mode: its }]) => name !== member && its !== mode)
    const [last] = others.sort(([, a], [, b]) => b.expiresAt - a.expiresAt)
    return last === undefined ? undefined : { holder: last[0], expiresIn: last[1].expiresAt - this.#clock.now() }
  }

  /** Who else holds the term of a shard. */
  holder(member: string, shard: number): Holder | undefined {
    const term = this.#terms.get(shard)
    if (term === undefined || term.holder === member || !this.#runs(term)) return undefined
    return { holder: term.holder, expiresIn: term.expiresAt - this.#clock.now() }
  }

  async terms(): Promise<readonly { shard: number; holder: string }[]> {
    return [...this.#terms]
      .filter(([, term]) => this.#runs(term))
      .map(([shard, { holder }]) => ({ shard, holder }))
      .sort((a, b) => a.shard - b.shard)
  }

  async acquire(member: string, shard: number, lease: number): Promise<Term | undefined> {
    const before = this.#terms.get(shard)
    if (before !== undefined && before.holder !== member && this.#runs(before)) return undefined
    const epoch = (before?.epoch ?? 0) + 1
    this.#terms.set(shard, { epoch, holder: member, expiresAt: this.#clock.now() + lease, note: undefined })
    const abandoned = before !== undefined && before.holder !== '' && before.holder !== member
    return { shard, epoch: String(epoch), abandoned, note: abandoned ? before.note : undefined }
  }

  /** Whoever holds a term lives: its membership is renewed with it. */
  async renew(member: string, term: Term, lease: number): Promise<boolean> {
    const held = this.#held(term)
    if (held === undefined) return false
    const expiresAt = this.#clock.now() + lease
    held.expiresAt = expiresAt
    for (const [name, { mode }] of this.#live()) if (name === member) this.#members.set(name, { mode, expiresAt })
    return true
  }

  async release(_member: string, term: Term): Promise<void> {
    const held = this.#terms.get(term.shard)
    if (held !== undefined && String(held.epoch) === term.epoch) {
      Object.assign(held, { holder: '', expiresAt: Number.NEGATIVE_INFINITY, note: undefined })
    }
  }

  /** Whether a settlement under this term counts. */
  holds(term: Term): boolean {
    return this.#held(term) !== undefined
  }

  /** Which event is about to go out alone. */
  note(term: Term, eventId: string | undefined): void {
    const held = this.#held(term)
    if (held !== undefined) held.note = eventId
  }

  #held(term: Term): Held | undefined {
    const held = this.#terms.get(term.shard)
    return held !== undefined && String(held.epoch) === term.epoch && this.#runs(held) ? held : undefined
  }

  #runs({ holder, expiresAt }: Held): boolean {
    return holder !== '' && expiresAt > this.#clock.now()
  }

  #live() {
    return [...this.#members].filter(([, { expiresAt }]) => expiresAt > this.#clock.now())
  }
}
