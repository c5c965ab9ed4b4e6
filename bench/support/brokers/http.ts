import { createHmac, type Hmac, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import { Agent, type ClientRequest, createServer, type IncomingMessage, request, type Server } from 'node:http'
import { httpReceiver, httpSender, nodeListener } from 'waybill/http'
import {
  type BareEvent,
  type BarePublisher,
  type BrokerBench,
  bareHandler,
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
function macs(id: string, timestamp: string, attributes: string, body: string): [body: Hmac, attributes: Hmac] {
  const whole = `${id}.${timestamp}.${Buffer.byteLength(attributes)}.${attributes}${body}`
  const plain = `${id}.${timestamp}.${body}`
  return [createHmac('sha256', SECRET).update(plain), createHmac('sha256', ATTRIBUTES).update(whole)]
}

function attributesOf(headers: Readonly<Record<string, unknown>>): string {
  const lines: string[] = []
  for (const name in headers) {
    if (name.startsWith('ce-') || name === 'content-type') lines.push(`${name}:${headers[name]}\n`)
  }
  return lines.sort().join('')
}

/** Names and values by turns, the way of `node:http` that copies least. Which attributes there are is known here. */
function signed({ id, source, type, version, key, time, data }: BareEvent, host: string): string[] {
  const timestamp = String(Math.floor(Date.now() / 1000))
  const attributes =
    `ce-eventversion:${version}\nce-id:${id}\nce-partitionkey:${key}\nce-source:${source}\nce-specversion:1.0\n` +
    `ce-time:${time}\nce-type:${type}\ncontent-type:application/json\n`
  const [plain, whole] = macs(id, timestamp, attributes, data)
  const signature = `v1,${plain.digest('base64')} v1ce,${whole.digest('base64')}`
  const headers = ['host', host, 'content-type', 'application/json', 'content-length', String(Buffer.byteLength(data))]
  headers.push('ce-specversion', '1.0', 'ce-id', id, 'ce-source', source, 'ce-type', type, 'ce-time', time)
  headers.push('ce-eventversion', version, 'ce-partitionkey', key, 'webhook-id', id)
  headers.push('webhook-timestamp', timestamp, 'webhook-signature', signature)
  return headers
}

/** One request at a time. */
interface Lane {
  sent: ClientRequest | undefined
  late: number
}

async function barePublisher(url: string): Promise<BarePublisher> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS, maxFreeSockets: CONNECTIONS })
  const { hostname, port, host } = new URL(url)
  const lanes = new Set<Lane>()
  // One timer for all: those of `node:http` are for a connection that is silent, and cost more.
  const watch = setInterval(() => {
    const now = performance.now()
    for (const { sent, late } of lanes) if (late < now) sent?.destroy(new Error('no answer'))
  }, 1000)
  const post = (event: BareEvent, lane: Lane) =>
    new Promise<void>((resolve, reject) => {
      let status = 0
      const sent = request({ hostname, port, method: 'POST', path: '/', agent, headers: signed(event, host) })
      sent.on('response', (response) => {
        status = response.statusCode!
        response.resume()
      })
      sent.on('error', reject)
      sent.on('close', () => (status === 204 ? resolve() : reject(new Error(`answered ${status}`))))
      lane.sent = sent
      lane.late = performance.now() + TIMEOUT
      // One piece with the headers, where that is the same.
      if (Buffer.byteLength(event.data) === event.data.length) sent.end(event.data, 'latin1')
      else sent.end(event.data)
    })
  return {
    async publish(events) {
      // The agent would queue them too, and longer than this.
      let next = 0
      const run = async () => {
        const lane: Lane = { sent: undefined, late: Number.POSITIVE_INFINITY }
        lanes.add(lane)
        while (next < events.length) await post(events[next++]!, lane)
        lanes.delete(lane)
      }
      await Promise.all(Array.from({ length: CONNECTIONS / 2 }, run))
    },
    async close() {
      clearInterval(watch)
      agent.destroy()
    },
  }
}

/** Reads a request, and responds when all of it has come. */
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

/** When all have their responses; kept connections end with those who keep them. */
async function closed(server: Server): Promise<void> {
  await new Promise((resolve) => server.close(resolve))
}

async function bareConsume(url: string, _: string, onEvent: () => void): Promise<() => Promise<void>> {
  const server = await listening(url, ({ headers }, body) => {
    const text = body.toString()
    if (!verified(headers, text)) return 401
    bareHandler(text)
    setImmediate(onEvent)
    return 204
  })
  return () => closed(server)
}

function verified(headers: IncomingMessage['headers'], body: string): boolean {
  const { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': signature } = headers
  if (Math.abs(Date.now() / 1000 - Number(timestamp)) > 300) return false
  const expected = macs(String(id), String(timestamp), attributesOf(headers), body)
  const given = String(signature).split(' ')
  return expected.every((mac, i) => {
    const [bytes, right] = [Buffer.from(given[i]!.slice(given[i]!.indexOf(',') + 1), 'base64'), mac.digest()]
    return bytes.length === right.length && timingSafeEqual(bytes, right)
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
        const headers = signed(event, new URL(url).host)
        let head = 'POST / HTTP/1.1\r\n'
        for (let i = 0; i < headers.length; i += 2) head += `${headers[i]}: ${headers[i + 1]}\r\n`
        return Buffer.from(`${head}\r\n${event.data}`)
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
    'ours publish': `signed, ${CONNECTIONS} at once over kept connections, to a receiver that responds with 204`,
    'bare publish': 'node:http with a list of headers, the same signature, deadline and as many connections',
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
