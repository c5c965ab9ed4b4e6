/** A contestant that stays: rounds come as lines on stdin, what each took goes out, so that only the first is cold. */
import { createInterface } from 'node:readline'
import type { Drained } from '../pg-drain.ts'

export interface Round {
  /** New in every round. */
  readonly name: string
  readonly events: number
}

/** Tells that work has begun, and of every event that was done. */
export interface Watch {
  begin(): void
  done(count: number): void
  /** Resolves when all were done, which is the end of the round, */
  readonly all: Promise<void>
  /** unless there is more to do: this is a later end. */
  end(): void
}

/** Serves rounds until stdin ends. `work` resolves when everything is in order again. */
export async function serveRounds(ready: object, work: (round: Round, watch: Watch) => Promise<void>): Promise<void> {
  say({ ready: true, ...ready })
  for await (const line of createInterface({ input: process.stdin })) {
    const round = JSON.parse(line) as Round
    const stopwatch = new Stopwatch(round.events)
    await work(round, stopwatch)
    say(stopwatch.taken())
  }
}

class Stopwatch implements Watch {
  readonly #events: number
  readonly #resident: NodeJS.Timeout
  #residentMb = 0
  #done = 0
  #began: { at: number; cpu: NodeJS.CpuUsage } | undefined
  #taken: { ms: number; cpu: number } | undefined
  #reached = () => {}
  readonly all: Promise<void>

  constructor(events: number) {
    this.#events = events
    this.all = new Promise((resolve) => {
      this.#reached = resolve
    })
    this.#resident = setInterval(() => {
      this.#residentMb = Math.max(this.#residentMb, process.memoryUsage.rss() / 2 ** 20)
    }, 200)
  }

  begin(): void {
    this.#began ??= { at: performance.now(), cpu: process.cpuUsage() }
  }

  done(count: number): void {
    this.begin()
    this.#done += count
    if (this.#done < this.#events) return
    this.end()
    this.#reached()
  }

  end(): void {
    const { user, system } = process.cpuUsage(this.#began!.cpu)
    this.#taken = { ms: performance.now() - this.#began!.at, cpu: user + system }
  }

  taken(): Drained {
    clearInterval(this.#resident)
    return { events: this.#done, ...this.#taken!, residentMb: this.#residentMb }
  }
}

function say(value: object): void {
  process.stdout.write(`${JSON.stringify(value)}\n`)
}
