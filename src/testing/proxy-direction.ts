import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { onAbort } from '../core/index.ts'

/** upstream: from the client to the server; downstream: from the server to the client. */
export type Direction = 'upstream' | 'downstream'

/** A cut that waits for its number of bytes. */
export interface PendingCut {
  left: number
  done(fired: boolean): void
}

/** What is wrong with the network right now; shared by all connections of one proxy. */
export class Faults {
  hole = false
  swallowed: Direction | null = null
  latency = 0
  jitter = 0
  bytesPerSecond = Number.POSITIVE_INFINITY
  readonly cuts = new Map<Direction, PendingCut>()
  #healed: Promise<void> | null = null
  #heal = () => {}

  blackHole(): void {
    this.hole = true
    this.#healed ??= new Promise((resolve) => {
      this.#heal = resolve
    })
  }

  clear(): void {
    for (const cut of this.cuts.values()) cut.done(false)
    this.cuts.clear()
    Object.assign(this, { hole: false, swallowed: null, latency: 0, jitter: 0 })
    this.bytesPerSecond = Number.POSITIVE_INFINITY
    this.#heal()
    this.#healed = null
  }

  /** Returns at once, or when the black hole is over. */
  async passable(): Promise<void> {
    while (this.hole) await this.#healed
  }
}

/** What a direction needs from the connection it is half of. */
export interface ProxiedConnection {
  readonly signal: AbortSignal
  /** Bytes were lost: the connection cannot be used once the network is well again. */
  lossy: boolean
  cut(): void
}

type ProxyChunk = { due: number } & ({ kind: 'bytes'; bytes: Buffer } | { kind: 'end' } | { kind: 'reset' })

/** Read ahead this much while bytes wait; then the sender meets back-pressure, as on a real network. */
const READ_AHEAD = 1 << 20

/**
 * One direction of one connection. Bytes, end and reset go through the same queue, so that the end of a connection
 * is delayed, held or swallowed just as its bytes are.
 */
export class ProxyDirection {
  readonly #queue: ProxyChunk[] = []
  #queued = 0
  #wake = () => {}

  constructor(
    private readonly link: ProxiedConnection,
    private readonly direction: Direction,
    private readonly from: Socket,
    private readonly to: Socket,
    private readonly faults: Faults,
    private readonly random: () => number,
  ) {
    from.on('data', (bytes) => {
      this.#queued += bytes.length
      if (this.#queued > READ_AHEAD) from.pause()
      this.#push({ kind: 'bytes', bytes, due: 0 })
    })
    from.on('end', () => this.#push({ kind: 'end', due: 0 }))
    from.on('error', () => this.#push({ kind: 'reset', due: 0 }))
    onAbort(link.signal, () => this.#wake())
    void this.#run()
  }

  #push(item: ProxyChunk): void {
    const delay = this.faults.latency + this.faults.jitter * this.random()
    // One that is due before the one in front of it still waits behind it: TCP does not reorder.
    item.due = performance.now() + delay
    this.#queue.push(item)
    this.#wake()
  }

  async #run(): Promise<void> {
    while (!this.link.signal.aborted) {
      const item = this.#queue.shift()
      if (!item) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve
        })
        continue
      }
      await this.#wait(item.due - performance.now())
      await this.faults.passable()
      if (this.link.signal.aborted) return
      if (this.faults.swallowed === this.direction) this.link.lossy = true
      else if (item.kind === 'reset') this.link.cut()
      else if (item.kind === 'end') this.to.end()
      else await this.#send(item.bytes)
      if (item.kind === 'bytes') this.#taken(item.bytes.length)
    }
  }

  #taken(bytes: number): void {
    this.#queued -= bytes
    if (this.#queued <= READ_AHEAD) this.from.resume()
  }

  async #send(bytes: Buffer): Promise<void> {
    for (let rest = bytes; rest.length && !this.link.signal.aborted; ) {
      await this.faults.passable()
      const rate = this.faults.bytesPerSecond
      const slice = rest.subarray(0, Number.isFinite(rate) ? Math.max(1, Math.ceil(rate / 50)) : rest.length)
      const cut = this.faults.cuts.get(this.direction)
      if (cut && slice.length >= cut.left) return this.#cutHere(slice.subarray(0, cut.left), cut)
      if (cut) cut.left -= slice.length
      if (!this.to.write(slice)) await this.#drained()
      if (Number.isFinite(rate)) await this.#wait((slice.length / rate) * 1000)
      rest = rest.subarray(slice.length)
    }
  }

  /** The receiver gets exactly the last bytes and then the end; a reset could overtake them. The sender gets a reset. */
  #cutHere(last: Buffer, cut: PendingCut): void {
    this.faults.cuts.delete(this.direction)
    this.from.resetAndDestroy()
    this.to.end(last, () => {
      this.link.cut()
      cut.done(true)
    })
  }

  async #wait(milliseconds: number): Promise<void> {
    if (milliseconds > 0) await sleep(milliseconds, undefined, { signal: this.link.signal }).catch(() => {})
  }

  #drained(): Promise<void> {
    return new Promise((resolve) => {
      this.to.once('drain', resolve)
      this.to.once('close', resolve)
    })
  }
}
