import type { Message } from '../core/index.ts'
import type { Outputs } from '../router/index.ts'
import { answering } from '../router/replies.ts'
import type { FakeClock } from './fake-clock.ts'

/** What may happen to a message on its way. */
export type Disturbance = 'lost' | 'twice' | 'late' | 'very late' | 'overtaken'

export const DISTURBANCES: readonly Disturbance[] = ['lost', 'twice', 'late', 'very late', 'overtaken']

interface Travelling {
  readonly name: string
  readonly message: Message
  readonly to: 'participant' | 'saga'
  /** When it arrives. */
  at: number
  /** It arrives behind another of its destination. */
  behind: boolean
}

export interface NetworkOptions {
  readonly clock: FakeClock
  /** The message that is disturbed, by its name, and how. */
  readonly disturbed: string | undefined
  readonly does: Disturbance | undefined
  /** Milliseconds after which a message is late: a request has been given up by then, or all is over. */
  readonly late: number
  readonly veryLate: number
  readonly participant: (message: Message) => Outputs | Promise<Outputs>
}

/** The way of requests to participants, and of their replies back. Nothing is lost or late but what is to be. */
export class SagaNetwork {
  readonly #options: NetworkOptions
  readonly #travelling: Travelling[] = []
  /** Every message that was sent, by its name. */
  readonly names: string[] = []

  constructor(options: NetworkOptions) {
    this.#options = options
  }

  get isEmpty(): boolean {
    return this.#travelling.length === 0
  }

  /** Milliseconds until the next one arrives. */
  get nextIn(): number {
    return Math.max(0, Math.min(...this.#travelling.map(({ at }) => at)) - this.#options.clock.now())
  }

  /** What was committed to the outbox of the saga's service. */
  request(message: Message): void {
    const { sagastep, sagaundo } = message.extensions
    this.#send(`${sagaundo === undefined ? 'request' : 'undo'} ${sagastep}`, message, 'participant')
  }

  /** Brings what has arrived by now. `false` of `toSaga`: it comes again. */
  async deliver(toSaga: (message: Message) => Promise<boolean>): Promise<void> {
    for (;;) {
      const now = this.#options.clock.now()
      const next = this.#travelling.find(({ at, behind }) => at <= now && !behind)
      if (next === undefined) return
      this.#travelling.splice(this.#travelling.indexOf(next), 1)
      if (next.to === 'saga') {
        if (!(await toSaga(next.message))) {
          this.#travelling.unshift(next)
          return
        }
      } else {
        const outputs = answering(await this.#options.participant(next.message), next.message)
        for (const reply of listOf(outputs)) this.#send(`reply ${reply.type}`, reply, 'saga')
      }
      for (const other of this.#travelling) if (other.to === next.to) other.behind = false
    }
  }

  #send(what: string, message: Message, to: Travelling['to']): void {
    const { clock, disturbed, does, late, veryLate } = this.#options
    const name = `${what} #${this.names.filter((one) => one.startsWith(`${what} #`)).length + 1}`
    this.names.push(name)
    const at = clock.now()
    const plain: Travelling = { name, message, to, at, behind: false }
    if (name !== disturbed) this.#travelling.push(plain)
    else if (does === 'twice') this.#travelling.push(plain, { ...plain })
    else if (does === 'late') this.#travelling.push({ ...plain, at: at + late })
    else if (does === 'very late') this.#travelling.push({ ...plain, at: at + veryLate })
    // Until another has arrived: of a request, its undo. When none comes, very late.
    else if (does === 'overtaken') this.#travelling.push({ ...plain, behind: true })
  }

  /** Nothing else comes any more: what was to be overtaken arrives. */
  release(): void {
    for (const one of this.#travelling) one.behind = false
  }
}

function listOf(outputs: Outputs): readonly Message[] {
  if (outputs === undefined) return []
  return (Array.isArray(outputs) ? outputs : [outputs]) as readonly Message[]
}
