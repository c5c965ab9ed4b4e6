import { createInterface } from 'node:readline'

/** What one round of a contestant came to. */
export interface Ran {
  readonly sagas: number
  readonly ms: number
  readonly p50: number
  readonly p99: number
  /** CPU microseconds of this process. */
  readonly cpu: number
}

export interface SagaChildOptions {
  readonly url: string
  readonly inFlight: number
  /** How long a round lasts, in milliseconds. */
  readonly ms: number
  /** Each step updates a row of its own table. */
  readonly update: boolean
}

/**
 * The part of a contestant: warms up, says that it is ready, and for each line it is sent drives sagas for as long as it
 * was told, `inFlight` at a time. Ends with its input.
 */
export async function race({ inFlight, ms }: SagaChildOptions, one: (n: number) => Promise<unknown>): Promise<void> {
  let n = 0
  await drive(500)
  console.log('{}')
  for await (const _ of createInterface({ input: process.stdin })) console.log(JSON.stringify(await drive(ms)))

  async function drive(limit: number): Promise<Ran> {
    const took: number[] = []
    const cpu = process.cpuUsage()
    const began = performance.now()
    const lane = async () => {
      while (performance.now() - began < limit) {
        const at = performance.now()
        await one(n++)
        took.push(performance.now() - at)
      }
    }
    await Promise.all(Array.from({ length: inFlight }, lane))
    const all = performance.now() - began
    const { user, system } = process.cpuUsage(cpu)
    took.sort((a, b) => a - b)
    const at = (share: number) => took[Math.min(took.length - 1, Math.floor(share * took.length))]!
    return { sagas: took.length, ms: all, p50: at(0.5), p99: at(0.99), cpu: user + system }
  }
}
