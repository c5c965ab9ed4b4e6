import type { Clock } from '../core/index.ts'
import { Task } from './task.ts'

export interface SharedLookOptions<Waiter> {
  readonly name: string
  /** Looks for all of these at once, and notifies those whose wait is over. */
  readonly look: (waiters: readonly Waiter[]) => Promise<void>
  /** Milliseconds until the next look for these. */
  readonly pause: (waiters: readonly Waiter[]) => number
  /** The pause after looks that failed, in milliseconds. */
  readonly backoff: { readonly min: number; readonly max: number }
  readonly clock: Clock
}

/** One look for all in this process who wait for something of one store: a task that runs while somebody waits. */
export class SharedLook<Waiter> {
  readonly #look: SharedLookOptions<Waiter>['look']
  readonly #task: Task<number>
  readonly #least: number
  readonly #waiters = new Set<Waiter>()
  /** Until the next look. */
  #pause = 0
  #turn: { readonly came: Waiter[]; readonly looked: Promise<void> } | undefined
  #stopping: Promise<void> | undefined

  constructor({ name, look, pause, backoff, clock }: SharedLookOptions<Waiter>) {
    this.#look = look
    this.#least = backoff.min
    this.#task = new Task({
      ...{ name, every: backoff.min, backoff, clock },
      run: async () => {
        const waiters = [...this.#waiters]
        if (waiters.length > 0) await look(waiters)
        // Also for those who came meanwhile: `add` did not wake it for them.
        this.#pause = pause([...this.#waiters])
        return this.#pause
      },
      again: (ms) => ms,
    })
  }

  /** Looks for it now, and for all who come in the same turn. */
  once(waiter: Waiter): Promise<void> {
    if (this.#turn === undefined) {
      const came: Waiter[] = []
      const looked = Promise.resolve().then(() => {
        this.#turn = undefined
        return this.#look(came)
      })
      this.#turn = { came, looked }
    }
    this.#turn.came.push(waiter)
    return this.#turn.looked
  }

  /** It is looked for from now on, until it is removed. */
  async add(waiter: Waiter): Promise<void> {
    this.#waiters.add(waiter)
    await this.#stopping
    if (this.#waiters.size === 0) return
    if (!this.#task.started) await this.#task.start()
    // It was just looked for: only a pause that is long by now is cut short.
    else if (this.#pause > this.#least) this.#task.wake()
  }

  remove(waiter: Waiter): void {
    this.#waiters.delete(waiter)
    if (this.#waiters.size > 0 || !this.#task.started || this.#stopping !== undefined) return
    this.#stopping = this.#task.stop().finally(() => {
      this.#stopping = undefined
    })
  }

  /** There may be something to see. */
  wake(): void {
    this.#task.wake()
  }
}
