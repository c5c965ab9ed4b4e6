import { type Agent, type ClientRequest, type IncomingMessage, request as plainRequest } from 'node:http'
import { request as secureRequest } from 'node:https'
import { type Clock, WaybillError } from '../../core/index.ts'
import type { Answer } from './answer.ts'

/** As much of an answer's body is read as keeps the connection usable; whoever sends more loses it. */
const MOST_BODY = 64 * 1024

export interface Post {
  readonly url: URL
  readonly agent: Agent
  readonly headers: Readonly<Record<string, string>>
  readonly body: Uint8Array
  /** Milliseconds, for all of it. */
  readonly timeout: number
  readonly signal: AbortSignal
  readonly clock: Clock
}

/**
 * One POST. Rejects when nothing was answered in time, or nothing at all: then nobody knows whether it arrived. A kept
 * connection that the other side was just closing says nothing about the server, so that is tried once more at once.
 */
export async function post(options: Post): Promise<Answer> {
  try {
    return await postOnce(options)
  } catch (error) {
    if (!(error instanceof StaleConnection) || options.signal.aborted) throw error
    return postOnce(options)
  }
}

class StaleConnection extends WaybillError {
  constructor(cause: unknown) {
    super('STALE_CONNECTION', 'the connection was closed by the other side', { cause })
  }
}

function postOnce({ url, agent, headers, body, timeout, signal, clock }: Post): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const over = new AbortController()
    const make = url.protocol === 'https:' ? secureRequest : plainRequest
    const request: ClientRequest = make(url, { method: 'POST', agent, headers: { ...headers } })
    let answer: Answer | undefined
    const end = (error?: unknown) => {
      if (over.signal.aborted) return
      over.abort()
      signal.removeEventListener('abort', onAbort)
      // Once there is a status, it stands, whatever becomes of the rest.
      if (answer !== undefined) resolve(answer)
      else reject(error)
    }
    const giveUp = (error: unknown) => {
      end(error)
      request.destroy()
    }
    const onAbort = () => giveUp(signal.reason)
    request.on('error', (error) => {
      const { code } = error as { code?: unknown }
      end(request.reusedSocket && code === 'ECONNRESET' ? new StaleConnection(error) : error)
    })
    request.on('response', (response) => {
      answer = { status: response.statusCode ?? 0, retryAfter: response.headers['retry-after'] }
      drain(response, end)
    })
    request.on('close', () => end(new WaybillError('NO_ANSWER', 'the connection was closed without an answer')))
    if (signal.aborted) return onAbort()
    signal.addEventListener('abort', onAbort)
    clock.sleep(timeout, over.signal).then(() => {
      if (!over.signal.aborted) giveUp(new WaybillError('TIMEOUT', `no answer within ${timeout} ms`))
    })
    request.end(body)
  })
}

function drain(response: IncomingMessage, end: () => void): void {
  let size = 0
  response.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > MOST_BODY) response.destroy()
  })
  response.on('error', end)
  response.on('close', end)
}
