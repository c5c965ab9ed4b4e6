import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

/**
 * Requests written to kept connections as they are, each when the one before is answered: an HTTP client would cost more
 * than the receiver it is to measure.
 */
export async function sendRequests(url: URL, requests: readonly Buffer[], connections: number): Promise<void> {
  let next = 0
  const lane = async () => {
    const socket = await connected(url)
    try {
      while (next < requests.length) await exchange(socket, requests[next++]!)
    } finally {
      socket.destroy()
    }
  }
  await Promise.all(Array.from({ length: connections }, lane))
}

async function connected({ hostname, port }: URL): Promise<Socket> {
  for (const until = Date.now() + 10_000; ; ) {
    const socket = connect(Number(port), hostname).setNoDelay()
    try {
      await once(socket, 'connect')
      return socket
    } catch (error) {
      if (Date.now() > until) throw error
      // It is not listening yet.
      await new Promise((resolve) => setTimeout(resolve, 20))
    }
  }
}

const END = Buffer.from('\r\n\r\n')

function exchange(socket: Socket, request: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    let answer: Buffer = Buffer.alloc(0)
    const settle = (error?: Error) => {
      socket.off('data', onData).off('close', onClose)
      if (error === undefined) resolve()
      else reject(error)
    }
    const onClose = () => settle(new Error('the receiver closed the connection'))
    const onData = (chunk: Buffer) => {
      answer = answer.length === 0 ? chunk : Buffer.concat([answer, chunk])
      if (!answer.includes(END)) return
      const status = answer.toString('latin1', 9, 12)
      settle(status === '204' ? undefined : new Error(`the receiver answered ${status}`))
    }
    socket.on('data', onData).on('close', onClose)
    socket.write(request)
  })
}
