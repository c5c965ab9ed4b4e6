import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import {
  type HttpReceiver,
  type HttpReceiverOptions,
  type HttpSenderOptions,
  httpReceiver,
  httpSender,
  nodeListener,
} from '../../../src/brokers/http/index.ts'
import { Message, type RawMessage } from '../../../src/core/index.ts'
import { eventually } from '../../support/wait.ts'

export const SECRET = `whsec_${Buffer.from('a secret of thirty-two bytes ok!').toString('base64')}`
export const OTHER_SECRET = `whsec_${Buffer.from('another one of thirty-two bytes!').toString('base64')}`
export const NEVER: AbortSignal = new AbortController().signal
/** Tests stand on this machine, where no request may go by default. */
export const HERE = ['127.0.0.0/8', 'localhost']

let made = 0

export function message(data: string | Uint8Array = '{"n":1}', attributes: Record<string, unknown> = {}): RawMessage {
  const id = `h-${process.pid}-${++made}`
  return new Message({ id, source: '/http-test', type: 'http.tested', ...attributes }, data)
}

export async function listen(server: Server, port = 0): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', resolve)
  })
  return (server.address() as AddressInfo).port
}

export async function close(server: Server): Promise<void> {
  const closed = new Promise((resolve) => server.close(resolve))
  server.closeAllConnections()
  await closed
}

/** A server on a real socket, with whatever listener. */
export async function serve(listener: Parameters<typeof createServer>[1]) {
  const server = createServer(listener as never)
  const port = await listen(server)
  return { server, port, url: `http://127.0.0.1:${port}/hooks`, [Symbol.asyncDispose]: () => close(server) }
}

/** `web`: by way of web requests, as a framework would. */
export async function serveReceiver(options: Partial<HttpReceiverOptions> = {}, web = false) {
  const receiver: HttpReceiver = httpReceiver({ secrets: SECRET, ...options })
  return Object.assign(await serve(nodeListener(web ? receiver.handle : receiver)), { receiver })
}

export function sender(url: HttpSenderOptions['url'], options: Partial<HttpSenderOptions> = {}) {
  const secrets = options.unsigned === true ? {} : { secrets: SECRET }
  return httpSender({ url, allow: HERE, ...secrets, ...options })
}

export async function until(what: string, condition: () => boolean | Promise<boolean>, limit = 60_000): Promise<void> {
  await eventually(what, condition, { limit })
}
