// How events travel in the demo: one HTTP request each. The answer is the ack, given after the commit.

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { type RawMessage, Reject, type Source, Unavailable } from 'waybill'
import type { Delivery } from 'waybill/adapter'
import { fromStructured, STRUCTURED_TYPE, toStructured } from 'waybill/cloudevents'

/** The sender: an async function is all that a relay needs. It returns when the other side has the event. */
export function postTo(url: string): (message: RawMessage, signal: AbortSignal) => Promise<void> {
  return async (message, signal) => {
    const headers = { 'content-type': STRUCTURED_TYPE }
    let response: Response
    try {
      response = await fetch(url, { method: 'POST', headers, body: toStructured(message), signal })
    } catch (error) {
      throw new Unavailable('billing does not answer', { cause: error })
    }
    if (response.status === 503) throw new Unavailable('billing is busy')
    if (response.status === 422) throw new Reject('billing refused the event')
    if (!response.ok) throw new Error(`billing answered ${response.status}`)
  }
}

interface Request extends Delivery {
  readonly response: ServerResponse
}

/** What a gateway does with a request: as usual, no answer to any, or no connection at all. */
export type Manners = 'up' | 'mute' | 'down'

/** The receiver: a source whose deliveries are requests. What settles one answers it. */
export class Gateway implements Source<Request> {
  readonly name = 'gateway'
  readonly features = {}
  /** Drops this many and says that it has them: what a broker must never do. */
  lose = 0
  delivered = 0
  unanswered = 0
  #manners: Manners = 'up'
  readonly #seen = new Set<string>()
  readonly #dropped = new Set<string>()
  readonly #waiting: Request[] = []
  readonly #server = createServer((request, response) => void this.#receive(request, response))
  #wake = () => {}

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, '127.0.0.1', resolve))
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}/`
  }

  behave(manners: Manners): void {
    this.#manners = manners
    this.unanswered = 0
    if (manners === 'down') this.#server.closeAllConnections()
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  async open() {
    return {
      lost: new AbortController().signal,
      take: async ({ count }: { count: number }) => this.#waiting.splice(0, count),
      wait: (ms: number, signal: AbortSignal) =>
        new Promise<void>((resolve) => {
          const over = () => {
            clearTimeout(timer)
            signal.removeEventListener('abort', over)
            resolve()
          }
          const timer = setTimeout(over, ms)
          signal.addEventListener('abort', over, { once: true })
          this.#wake = over
        }),
      settle: async (batch: readonly (readonly [Request, { kind: string }])[]) => {
        for (const [{ response }, { kind }] of batch) this.#answer(response, kind)
        return 0
      },
      close: async () => {},
    }
  }

  async #receive(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (this.#manners === 'down') return void request.socket.destroy()
    const body = await text(request).catch(() => undefined)
    if (body === undefined) return
    const message = fromStructured(body)
    if (this.#drops(message.id)) return void response.writeHead(204).end()
    this.delivered++
    this.#waiting.push({ message, key: message.key, attempts: 0, size: body.length, response })
    this.#wake()
  }

  #drops(id: string): boolean {
    if (this.#manners === 'up' && !this.#seen.has(id) && this.#dropped.size < this.lose) this.#dropped.add(id)
    this.#seen.add(id)
    return this.#dropped.has(id)
  }

  #answer(response: ServerResponse, kind: string): void {
    if (this.#manners === 'up') {
      response.writeHead(kind === 'done' ? 204 : kind === 'dead' ? 422 : 503).end()
      return
    }
    this.unanswered++
    if (this.#manners === 'down') response.destroy()
  }
}
