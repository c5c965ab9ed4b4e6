import { onAbort } from '../../core/index.ts'
import { type BodyLimits, type Incoming, isTooLong, NOTHING, Pieces, type Unread, type Verdict } from './incoming.ts'

/** A request as web frameworks have it. */
export class WebIncoming implements Incoming {
  readonly method: string
  readonly headers: Readonly<Record<string, string | undefined>>
  readonly #request: Request

  constructor(request: Request) {
    this.#request = request
    this.method = request.method
    this.headers = Object.fromEntries(request.headers)
  }

  async read(limits: BodyLimits): Promise<Uint8Array | Unread> {
    if (isTooLong(this, limits)) return 'too large'
    if (this.#request.body === null) return NOTHING
    if (this.#request.bodyUsed || this.#request.body.locked) return 'taken'
    const reader = (this.#request.body as ReadableStream<Uint8Array>).getReader()
    const { deadlines, timeout } = limits
    let late = () => {}
    const slow = new Promise<'too slow'>((resolve) => {
      late = () => resolve('too slow')
    })
    const deadline = deadlines.add(timeout, late)
    try {
      // Not withDeadline: all bodies share one timer.
      return await Promise.race([slow, readAll(reader, limits)])
    } catch {
      return 'broken'
    } finally {
      deadlines.delete(deadline)
      // Asks a client that still sends to stop. Not waited for: it may never answer.
      reader.cancel().catch(() => {})
    }
  }

  onGone(listener: () => void): () => void {
    const { signal } = this.#request
    if (!signal.aborted) return onAbort(signal, listener)
    queueMicrotask(listener)
    return () => {}
  }
}

async function readAll(
  reader: ReadableStreamDefaultReader<Uint8Array>,
  { most, room }: BodyLimits,
): Promise<Uint8Array | Unread> {
  const pieces = new Pieces()
  let size = 0
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return pieces.whole()
    size += value.byteLength
    if (size > most) return 'too large'
    if (room?.(value.byteLength) === false) return 'no room'
    pieces.add(value)
  }
}

export function webResponse({ status, headers, text }: Verdict): Response {
  return new Response(text ?? null, { status, headers: { ...headers } })
}
