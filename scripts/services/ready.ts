/**
 * Is the server behind this address ready to work? Each check speaks just enough of the protocol to hear an answer
 * that only a ready server gives: an open port is not enough, PostgreSQL opens it while it still recovers.
 */
import { connect } from 'node:net'
import type { Protocol } from './types.ts'

interface Check {
  /** First bytes to send, if the client speaks first. */
  hello?: (url: URL) => Buffer
  /** Looks at all bytes so far: true or false when decided, undefined to read on. */
  verdict: (received: Buffer) => boolean | undefined
}

const checks: Record<Protocol, Check> = {
  tcp: { verdict: () => undefined },
  postgres: { hello: postgresHello, verdict: postgresVerdict },
  redis: {
    hello: () => Buffer.from('PING\r\n'),
    // A password does not make it less ready.
    verdict: (bytes) => (bytes.includes('\n') ? /^(\+PONG|-NOAUTH)/.test(bytes.toString()) : undefined),
  },
  // The answer to the protocol header is the method frame Connection.Start.
  amqp: { hello: () => Buffer.from('AMQP\0\0\x09\x01', 'latin1'), verdict: (bytes) => bytes[0] === 1 },
  nats: { verdict: (bytes) => (bytes.includes('\n') ? bytes.toString().startsWith('INFO ') : undefined) },
  kafka: { hello: kafkaHello, verdict: (bytes) => (bytes.length >= 10 ? bytes.readInt32BE(4) === 7 : undefined) },
}

export function isReady(url: string, protocol: Protocol, timeout = 1000): Promise<boolean> {
  const target = new URL(url)
  const check = checks[protocol]
  return new Promise((resolve) => {
    const socket = connect(Number(target.port), target.hostname)
    let received: Buffer = Buffer.alloc(0)
    const done = (answer: boolean) => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(timeout, () => done(false))
    socket.on('error', () => done(false))
    socket.on('close', () => done(false))
    socket.on('connect', () => {
      if (protocol === 'tcp') return done(true)
      if (check.hello) socket.write(check.hello(target))
    })
    socket.on('data', (chunk) => {
      received = Buffer.concat([received, chunk])
      const answer = check.verdict(received)
      if (answer !== undefined) done(answer)
    })
  })
}

function postgresHello(url: URL): Buffer {
  const database = url.pathname.slice(1) || 'postgres'
  const body = `user\0${decodeURIComponent(url.username) || 'postgres'}\0database\0${database}\0\0`
  const head = Buffer.alloc(8)
  head.writeInt32BE(8 + Buffer.byteLength(body), 0)
  head.writeInt32BE(196_608, 4) // protocol 3.0
  return Buffer.concat([head, Buffer.from(body)])
}

/** Ready is ReadyForQuery, or a server that asks for a password: it only asks once it accepts connections. */
function postgresVerdict(bytes: Buffer): boolean | undefined {
  for (let at = 0; at + 5 <= bytes.length; at += 1 + bytes.readInt32BE(at + 1)) {
    const type = String.fromCharCode(bytes[at]!)
    if (type === 'Z') return true
    if (type === 'E') return false
    if (type === 'R' && at + 9 <= bytes.length && bytes.readInt32BE(at + 5) !== 0) return true
  }
  return undefined
}

/** ApiVersions, version 0, correlation id 7: a broker replies to it once it is unfenced. */
function kafkaHello(): Buffer {
  const client = Buffer.from('waybill')
  const bytes = Buffer.alloc(14 + client.length)
  bytes.writeInt32BE(bytes.length - 4, 0)
  bytes.writeInt16BE(18, 4)
  bytes.writeInt16BE(0, 6)
  bytes.writeInt32BE(7, 8)
  bytes.writeInt16BE(client.length, 12)
  client.copy(bytes, 14)
  return bytes
}
