// The HTTP API. Node's own server is enough; with Express or Fastify the three lines of each route are the same.
//
//   PUT  /buyers/ann                {"name": "Ann"}
//   PUT  /orders/<uuid>             {"buyerId": "ann", "sku": "tea", "quantity": 2}
//   POST /orders/<uuid>/cancel
//   GET  /buyers/ann/orders?size=20&cursor=…

import type { IncomingMessage } from 'node:http'
import { TOKEN_HEADER, tokenCookie, tokenFrom, tokenText } from 'waybill/projection'
import { z } from 'zod'
import { cancelOrder, NotFound, nameBuyer, placeOrder, Refused } from './orders.ts'
import { listOrders } from './view.ts'

export interface Answer {
  readonly status: number
  readonly body?: unknown
  readonly headers?: Record<string, string>
}

interface Request {
  readonly id: string
  readonly url: URL
  readonly request: IncomingMessage
}

const Buyer = z.object({ name: z.string().min(1) })
const Order = z.object({ buyerId: z.string(), sku: z.string(), quantity: z.int().positive().max(1000) })
const Size = z.coerce.number().int().min(1).max(100).default(20)

const ROUTES: readonly [method: string, path: RegExp, handle: (given: Request) => Promise<Answer>][] = [
  ['PUT', /^\/buyers\/([\w-]+)$/, putBuyer],
  ['PUT', /^\/orders\/([0-9a-f-]{36})$/, putOrder],
  ['POST', /^\/orders\/([0-9a-f-]{36})\/cancel$/, postCancel],
  ['GET', /^\/buyers\/([\w-]+)\/orders$/, getOrders],
]

async function putBuyer({ id, request }: Request): Promise<Answer> {
  await nameBuyer(id, Buyer.parse(await json(request)).name)
  return { status: 204 }
}

async function putOrder({ id, request }: Request): Promise<Answer> {
  const { total, token } = await placeOrder({ orderId: id, ...Order.parse(await json(request)) })
  // The next list that this client asks for has this order: a cookie for browsers, a header for the others.
  const headers = token && { 'set-cookie': tokenCookie(token), [TOKEN_HEADER]: tokenText(token) }
  return { status: token ? 201 : 200, body: { orderId: id, total }, ...(headers && { headers }) }
}

async function postCancel({ id }: Request): Promise<Answer> {
  await cancelOrder(id)
  // Undoing takes a moment: other services have to answer.
  return { status: 202 }
}

async function getOrders({ id, url, request }: Request): Promise<Answer> {
  const size = Size.parse(url.searchParams.get('size') ?? undefined)
  const cursor = url.searchParams.get('cursor') ?? undefined
  return { status: 200, body: await listOrders(id, { size, cursor, token: tokenFrom(request.headers) }) }
}

/** Undefined: no such route. What it throws beyond these is a fault of the service. */
export function route(request: IncomingMessage): { name: string; answer(): Promise<Answer> } | undefined {
  const url = new URL(request.url ?? '/', 'http://api')
  for (const [method, path, handle] of ROUTES) {
    const id = path.exec(url.pathname)?.[1]
    if (method !== request.method || id === undefined) continue
    return { name: handle.name, answer: () => handle({ id, url, request }).catch(refusal) }
  }
  return undefined
}

function refusal(error: Error): Answer {
  const body = { error: error.message }
  if (error instanceof NotFound) return { status: 404, body }
  if (error instanceof Refused || error instanceof z.ZodError) return { status: 422, body }
  throw error
}

async function json(request: IncomingMessage): Promise<unknown> {
  let text = ''
  for await (const chunk of request) text += chunk
  try {
    return JSON.parse(text)
  } catch {
    throw new Refused('the body is not JSON')
  }
}
