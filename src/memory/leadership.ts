import type { Clock } from '../core/index.ts'
import type { Holder, Leadership, Member, Term } from '../outbox/leadership.ts'

interface HeldTerm {
  epoch: number
  holder: string
  expiresAt: number
  probe: string | undefined
}

/** Leadership within one process, by the same rules as among many machines. */
export class MemoryLeadership implements Leadership {
  readonly #clock: Clock
  readonly #members = new Map<string, { readonly mode: string; readonly expiresAt: number }>()
  readonly #terms = new Map<number, HeldTerm>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async join(
    member: string,
    mode: string,
    lease: number,
  ): Promise<{ readonly excludedBy?: Holder & { readonly mode: string } }> {
    const others = this.#live().filter(([name, other]) => name !== member && other.mode !== mode)
    const [last] = others.sort(([, a], [, b]) => b.expiresAt - a.expiresAt)
    if (last !== undefined) {
      const [holder, { mode: its, expiresAt }] = last
      return { excludedBy: { holder, mode: its, expiresIn: expiresAt - this.#clock.now() } }
    }
    this.#members.set(member, { mode, expiresAt: this.#clock.now() + lease })
    return {}
  }

  async leave(member: string): Promise<void> {
    this.#members.delete(member)
  }

  async members(): Promise<readonly Member[]> {
    return this.#live()
      .map(([name, { mode }]) => ({ name, mode }))
      .sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  async terms(): Promise<readonly (Holder & { readonly shard: number })[]> {
    return [...this.#terms]
      .filter(([, term]) => this.#runs(term))
      .map(([shard, { holder, expiresAt }]) => ({ shard, holder, expiresIn: expiresAt - this.#clock.now() }))
      .sort((a, b) => a.shard - b.shard)
  }

  async acquire(member: string, shard: number, lease: number): Promise<Term | undefined> {
    const before = this.#terms.get(shard)
    if (before !== undefined && before.holder !== member && this.#runs(before)) return undefined
    const epoch = (before?.epoch ?? 0) + 1
    this.#terms.set(shard, { epoch, holder: member, expiresAt: this.#clock.now() + lease, probe: undefined })
    const abandoned = before !== undefined && before.holder !== '' && before.holder !== member
    return { shard, epoch: String(epoch), abandoned, probe: abandoned ? before.probe : undefined }
  }

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
      Object.assign(held, { holder: '', expiresAt: Number.NEGATIVE_INFINITY, probe: undefined })
    }
  }

  /** Whether a settlement under this term counts. */
  holds(term: Term): boolean {
    return this.#held(term) !== undefined
  }

  async recordProbe(term: Term, probe: string | undefined): Promise<void> {
    const held = this.#held(term)
    if (held !== undefined) held.probe = probe
  }

  #held(term: Term): HeldTerm | undefined {
    const held = this.#terms.get(term.shard)
    return held !== undefined && String(held.epoch) === term.epoch && this.#runs(held) ? held : undefined
  }

  #runs({ holder, expiresAt }: HeldTerm): boolean {
    return holder !== '' && expiresAt > this.#clock.now()
  }

  #live() {
    return [...this.#members].filter(([, { expiresAt }]) => expiresAt > this.#clock.now())
  }
}
