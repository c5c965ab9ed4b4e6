import { createHmac, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import { Agent, createServer, type IncomingMessage, request, type Server } from 'node:http'
import { httpReceiver, httpSender, nodeListener } from 'waybill/http'
import {
  type BareEvent,
  type BarePublisher,
  type BrokerBench,
  bareHandler,
  headersOf,
  ROOM,
  type Role,
  type Stage,
} from './broker.ts'
import { sendRequests } from './http-load.ts'
import { bareEvents } from './messages.ts'

/** Requests at once, over as many connections. */
const CONNECTIONS = 32
/** Milliseconds a sender waits for an answer, as ours does. */
const TIMEOUT = 15_000
/** The largest body in bytes that a receiver takes, as ours does. */
const LARGEST = 1024 * 1024
const SECRET = Buffer.alloc(32, 7)
const SECRETS = `whsec_${SECRET.toString('base64')}`
const ATTRIBUTES = createHmac('sha256', SECRET).update('waybill v1ce').digest()

/** Standard Webhooks, and over the attributes too, as Waybill signs. */
function macs(id: string, timestamp: string, attributes: string, body: Buffer): [body: Buffer, attributes: Buffer] {
  const whole = createHmac('sha256', ATTRIBUTES).update(`${id}.${timestamp}.${attributes.length}.`).update(attributes)
  const plain = createHmac('sha256', SECRET).update(`${id}.${timestamp}.`).update(body)
  return [plain.digest(), whole.update(body).digest()]
}

function attributesOf(headers: Readonly<Record<string, unknown>>): string {
  const lines: string[] = []
  for (const name in headers) {
    if (name.startsWith('ce-') || name === 'content-type') lines.push(`${name}:${headers[name]}\n`)
  }
  return lines.sort().join('')
}

function signed(event: BareEvent): { headers: Record<string, string>; body: Buffer } {
  const headers = headersOf(event, 'ce-')
  const body = Buffer.from(event.data)
  const timestamp = String(Math.floor(Date.now() / 1000))
  const [plain, whole] = macs(event.id, timestamp, attributesOf(headers), body)
  headers['content-length'] = String(body.length)
  headers['webhook-id'] = event.id
  headers['webhook-timestamp'] = timestamp
  headers['webhook-signature'] = `v1,${plain.toString('base64')} v1ce,${whole.toString('base64')}`
  return { headers, body }
}

async function barePublisher(url: string): Promise<BarePublisher> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS, maxFreeSockets: CONNECTIONS, timeout: TIMEOUT })
  const { hostname, port } = new URL(url)
  const post = (event: BareEvent) => {
    const { headers, body } = signed(event)
    return new Promise<void>((resolve, reject) => {
      const options = { hostname, port, method: 'POST', path: '/', agent, headers, timeout: TIMEOUT }
      const sent = request(options, (response) => {
        if (response.statusCode !== 204) reject(new Error(`answered ${response.statusCode}`))
        response.resume().on('end', resolve).on('error', reject)
      })
      sent.on('timeout', () => sent.destroy(new Error('no answer')))
      sent.on('error', reject).end(body)
    })
  }
  return {
    async publish(events) {
      // The agent would queue them too, and longer than this.
      let next = 0
      const lane = async () => {
        while (next < events.length) await post(events[next++]!)
      }
      await Promise.all(Array.from({ length: CONNECTIONS / 2 }, lane))
    },
    close: async () => agent.destroy(),
  }
}

/** Reads a request, and answers it when all of it has come. */
async function listening(url: string, onBody: (incoming: IncomingMessage, body: Buffer) => number): Promise<Server> {
  const server = createServer((incoming, outgoing) => {
    const chunks: Buffer[] = []
    let size = 0
    incoming.on('data', (chunk: Buffer) => {
      size += chunk.length
      if (size <= LARGEST) chunks.push(chunk)
      else incoming.destroy()
    })
    incoming.on('end', () => {
      const body = chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)
      outgoing.writeHead(onBody(incoming, body)).end()
    })
  })
  server.listen(Number(new URL(url).port), '127.0.0.1')
  await once(server, 'listening')
  return server
}

/** When all have their answers; kept connections end with those who keep them. */
async function closed(server: Server): Promise<void> {
  await new Promise((resolve) => server.close(resolve))
}

async function bareConsume(url: string, _: string, onEvent: () => void): Promise<() => Promise<void>> {
  const server = await listening(url, ({ headers }, body) => {
    if (!verified(headers, body)) return 401
    bareHandler(body.toString())
    setImmediate(onEvent)
    return 204
  })
  return () => closed(server)
}

function verified(headers: IncomingMessage['headers'], body: Buffer): boolean {
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature } = headers
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) return false
  const expected = macs(String(id), String(timestamp), attributesOf(headers), body)
  const given = String(signature).split(' ')
  return expected.every((mac, i) => {
    const bytes = Buffer.from(given[i]!.slice(given[i]!.indexOf(',') + 1), 'base64')
    return bytes.length === mac.length && timingSafeEqual(bytes, mac)
  })
}

async function stage(url: string, role: Role): Promise<Stage> {
  let received = 0
  const receive = () => {
    received++
    return 204
  }
  const server = role === 'consume' ? undefined : await listening(url, receive)
  let requests: Buffer[] = []
  return {
    empty: async () => {
      received = 0
    },
    count: async () => received,
    async fill(_, events) {
      requests = bareEvents(events).map((event) => {
        const { headers, body } = signed(event)
        const lines = Object.entries({ host: new URL(url).host, ...headers }).map(
          ([name, value]) => `${name}: ${value}`,
        )
        return Buffer.concat([Buffer.from(`POST / HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`), body])
      })
    },
    load: () => sendRequests(new URL(url), requests, 2 * CONNECTIONS),
    // An answer of 204 is the acknowledgement, and each was seen.
    left: async () => 0,
    close: async () => server && closed(server),
  }
}

export const httpBench: BrokerBench = {
  name: 'http',
  server: undefined,
  how: {
    'ours publish': `signed, ${CONNECTIONS} at once over kept connections, to a receiver that answers 204`,
    'bare publish': 'node:http, the same signature, timeout and as many connections',
    'ours consume': `nodeListener, signatures verified, ${2 * CONNECTIONS} connections, answered after the handler`,
    'bare consume': 'node:http, the same signatures and ages verified, bodies limited, answered after the handler',
  },
  stage,
  publisher: (url, tuned) =>
    httpSender({ url, secrets: SECRETS, allow: ['127.0.0.1'], ...(tuned ? { concurrency: CONNECTIONS } : {}) }),
  barePublisher,
  source(url, _, tuned) {
    const receiver = httpReceiver({ secrets: SECRETS })
    const server = createServer(nodeListener(receiver))
    server.listen(Number(new URL(url).port), '127.0.0.1')
    const close = async () => {
      await receiver.stop()
      await closed(server)
    }
    return { source: receiver, consume: tuned ? ROOM : {}, close }
  },
  bareConsume,
}
