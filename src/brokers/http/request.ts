import {
  type Agent,
  type ClientRequest,
  type IncomingMessage,
  request as plainRequest,
  type RequestOptions,
} from 'node:http'
import { request as secureRequest } from 'node:https'
import { urlToHttpOptions } from 'node:url'
import { WaybillError } from '../../core/index.ts'
import type { Answer } from './answer.ts'
import type { Deadlines } from './deadlines.ts'

/** As much of an answer's body is read as keeps the connection usable; whoever sends more loses it. */
const MOST_BODY = 64 * 1024

/** A URL as `node:http` wants it. */
export interface Target {
  readonly host: string
  readonly request: Pick<RequestOptions, 'protocol' | 'hostname' | 'port' | 'path'>
}

export function targetOf(url: URL): Target {
  const { protocol, hostname, port, path } = urlToHttpOptions(url) as Target['request']
  return { host: url.host, request: { protocol, hostname, ...(port === undefined ? {} : { port }), path } as never }
}

export interface Post {
  readonly target: Target
  readonly agent: Agent
  readonly headers: Readonly<Record<string, string>>
  readonly body: Uint8Array
  /** Milliseconds, for all of it. */
  readonly timeout: number
  readonly deadlines: Deadlines
  readonly signal: AbortSignal
  /** Who is told when it aborts: one listener is for all requests of a call. */
  readonly flying: Set<(reason: unknown) => void>
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

function postOnce({ target, agent, headers, body, timeout, deadlines, flying }: Post): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const make = target.request.protocol === 'https:' ? secureRequest : plainRequest
    const request: ClientRequest = make({ ...target.request, method: 'POST', agent, headers })
    let answer: Answer | undefined
    let over = false
    const end = (error?: unknown) => {
      if (over) return
      over = true
      deadlines.delete(deadline)
      flying.delete(giveUp)
      // Once there is a status, it stands, whatever becomes of the rest.
      if (answer !== undefined) resolve(answer)
      else reject(error)
    }
    const giveUp = (error: unknown) => {
      end(error)
      request.destroy()
    }
    request.on('error', (error) => {
      const { code } = error as { code?: unknown }
      end(request.reusedSocket && code === 'ECONNRESET' ? new StaleConnection(error) : error)
    })
    request.on('response', (response) => {
      answer = { status: response.statusCode ?? 0, retryAfter: response.headers['retry-after'] }
      drain(response, end)
    })
    request.on('close', () => {
      // Every request ends so: an error is made only where it is one.
      if (!over) end(new WaybillError('NO_ANSWER', 'the connection was closed without an answer'))
    })
    flying.add(giveUp)
    const deadline = deadlines.add(timeout, () => giveUp(new WaybillError('TIMEOUT', `no answer within ${timeout} ms`)))
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
  response.on('end', end)
  response.on('close', end)
}
