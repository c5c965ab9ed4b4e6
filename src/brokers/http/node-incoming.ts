import type { IncomingMessage, ServerResponse } from 'node:http'
import { type BodyLimits, type Incoming, isTooLong, Pieces, type Unread } from './incoming.ts'

/** A request of `node:http`, without the objects of the web around it: those cost more than all the rest. */
export class NodeIncoming implements Incoming {
  readonly method: string
  readonly headers: Incoming['headers']
  readonly #incoming: IncomingMessage
  readonly #outgoing: ServerResponse
  #onGone: (() => void) | undefined

  constructor(incoming: IncomingMessage, outgoing: ServerResponse) {
    this.#incoming = incoming
    this.#outgoing = outgoing
    this.method = incoming.method ?? 'GET'
    // Only cookies that a server sets come as a list.
    this.headers = incoming.headers as Incoming['headers']
    outgoing.on('close', () => this.#onGone?.())
  }

  async read(limits: BodyLimits): Promise<Uint8Array | Unread> {
    if (isTooLong(this, limits)) return 'too large'
    if (this.#incoming.readableEnded) return 'taken'
    return await new Promise((resolve) => this.#read(limits, resolve))
  }

  #read({ most, timeout, deadlines, room }: BodyLimits, resolve: (body: Uint8Array | Unread) => void): void {
    const incoming = this.#incoming
    const pieces = new Pieces()
    let size = 0
    const end = (body: Uint8Array | Unread) => {
      deadlines.delete(deadline)
      incoming.off('data', onData).off('end', onEnd).off('close', onBroken)
      // The connection stays open: there is an answer to be sent.
      if (typeof body === 'string') incoming.pause()
      resolve(body)
    }
    const onData = (chunk: Buffer) => {
      size += chunk.length
      if (size > most) end('too large')
      else if (room?.(chunk.length) === false) end('no room')
      else pieces.add(chunk)
    }
    const onEnd = () => end(pieces.whole())
    const onBroken = () => end('broken')
    const deadline = deadlines.add(timeout, () => end('too slow'))
    if (incoming.destroyed) onBroken()
    else incoming.on('data', onData).on('end', onEnd).on('close', onBroken)
  }

  onGone(listener: () => void): () => void {
    if (this.#outgoing.destroyed) queueMicrotask(listener)
    else this.#onGone = listener
    return () => {
      this.#onGone = undefined
    }
  }
}
