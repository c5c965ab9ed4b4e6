import type { IncomingMessage, ServerResponse } from 'node:http'
import { systemClock, WaybillError } from '../../core/index.ts'
import type { Incoming, Verdict } from './incoming.ts'
import { NodeIncoming } from './node-incoming.ts'

/** Responds to a request, as web frameworks have it. */
export type Handle = (request: Request) => Promise<Response>

/** Responds to requests whoever brings them: a receiver. */
export interface Receives {
  receive(incoming: Incoming): Promise<Verdict>
}

/**
 * A receiver as a listener of `node:http`: `createServer(nodeListener(receiver))`. Or any handler of web requests, at
 * the price of making them. The server's own limits (`headersTimeout`, `requestTimeout`) stay in force.
 */
export function nodeListener(to: Receives | Handle): (incoming: IncomingMessage, outgoing: ServerResponse) => void {
  const answered = typeof to === 'function' ? answerOfWeb(to) : answerOf(to)
  return (incoming, outgoing) => {
    // A client that hangs up is no error of ours.
    incoming.on('error', () => {})
    answered(incoming, outgoing).catch(() => outgoing.destroy())
  }
}

type Answered = (incoming: IncomingMessage, outgoing: ServerResponse) => Promise<void>

function answerOf(receiver: Receives): Answered {
  return async (incoming, outgoing) => {
    const { status, headers, text } = await receiver.receive(new NodeIncoming(incoming, outgoing))
    if (outgoing.destroyed) return
    if (text === undefined) outgoing.writeHead(status, headers).end()
    else outgoing.writeHead(status, headers).end(text)
    if (!incoming.complete) await discard(incoming)
  }
}

function answerOfWeb(handle: Handle): Answered {
  return async (incoming, outgoing) => {
    const gone = new AbortController()
    outgoing.on('close', () => gone.abort())
    const response = await handled(handle, incoming, gone.signal)
    const body = Buffer.from(await response.arrayBuffer())
    if (outgoing.destroyed) return
    outgoing.writeHead(response.status, Object.fromEntries(response.headers)).end(body)
    if (!incoming.complete) await discard(incoming)
  }
}

async function handled(handle: Handle, incoming: IncomingMessage, signal: AbortSignal): Promise<Response> {
  let request: Request
  try {
    request = requestOf(incoming, signal)
  } catch {
    return new Response(null, { status: 400 })
  }
  return handle(request)
}

function requestOf(incoming: IncomingMessage, signal: AbortSignal): Request {
  const { method = 'GET', url = '/', headers, rawHeaders } = incoming
  const pairs: [string, string][] = []
  for (let i = 0; i < rawHeaders.length; i += 2) pairs.push([rawHeaders[i]!, rawHeaders[i + 1]!])
  const body = method === 'GET' || method === 'HEAD' ? {} : { body: bodyOf(incoming), duplex: 'half' }
  const address = new URL(url, `http://${headers.host ?? 'localhost'}`)
  return new Request(address, { method, headers: pairs, signal, ...body } as RequestInit)
}

/** Unlike that of node:stream, cancelling it leaves the connection open: there is an answer to be sent. */
function bodyOf(incoming: IncomingMessage): ReadableStream<Uint8Array> {
  let open = true
  const ending = (end: () => void) => () => {
    if (open) end()
    open = false
  }
  return new ReadableStream<Uint8Array>({
    start(controller) {
      incoming.on('data', (chunk: Buffer) => {
        if (!open) return
        controller.enqueue(chunk)
        if ((controller.desiredSize ?? 0) <= 0) incoming.pause()
      })
      const broken = ending(() => controller.error(new WaybillError('BROKEN', 'the request broke off')))
      incoming.on(
        'end',
        ending(() => controller.close()),
      )
      incoming.on('error', broken).on('close', broken)
    },
    pull() {
      incoming.resume()
    },
    cancel() {
      open = false
      incoming.pause()
    },
  })
}

/** A client that is still sending must be let finish, or it never sees the answer; but not without end. */
async function discard(incoming: IncomingMessage): Promise<void> {
  const over = new AbortController()
  let size = 0
  incoming.on('data', (chunk: Buffer) => {
    size += chunk.length
    if (size > MOST_DISCARDED) over.abort()
  })
  incoming.on('close', () => over.abort()).on('end', () => over.abort())
  incoming.resume()
  await systemClock.sleep(LONGEST_DISCARDED, over.signal)
  if (!incoming.complete) incoming.destroy()
}

const MOST_DISCARDED = 4 * 1024 * 1024
const LONGEST_DISCARDED = 2000
