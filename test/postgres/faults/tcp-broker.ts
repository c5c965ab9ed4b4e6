import { connect, createServer, type Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { freePort } from '../../../scripts/services/ports.ts'
import { OK, type Outcome } from '../../../src/adapter.ts'
import type { Publisher } from '../../../src/index.ts'

/** A broker on a real socket: takes ids line by line and confirms each; it can be made to close on one, or to go away. */
export async function tcpBroker() {
  const sockets = new Set<Socket>()
  let poison: string | undefined
  const serve = (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => {}).on('close', () => sockets.delete(socket))
    createInterface({ input: socket }).on('line', (id) => {
      if (id === poison) socket.destroy()
      else if (!socket.destroyed) socket.write(`${id}\n`)
    })
  }
  let server = createServer(serve)
  const port = await freePort()
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  const down = async () => {
    const closed = new Promise((resolve) => server.close(resolve))
    for (const socket of sockets) socket.destroy()
    await closed
  }
  return {
    port,
    /** Whoever sends this id loses the connection, and with it all that is on its way. */
    closeOn(id: string) {
      poison = id
    },
    down,
    async up() {
      server = createServer(serve)
      await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
    },
    [Symbol.asyncDispose]: down,
  }
}

/** One connection, opened again when it is needed. Nothing is confirmed that the broker has not confirmed. */
export function tcpPublisher(port: number): Publisher {
  let socket: Socket | undefined
  let waiting = new Map<string, () => void>()
  let broken: Promise<never> | undefined
  const open = () => {
    const mine = connect(port, '127.0.0.1')
    const mineWaiting = new Map<string, () => void>()
    socket = mine
    waiting = mineWaiting
    createInterface({ input: mine })
      .on('line', (id) => mineWaiting.get(id)?.())
      .on('error', () => {})
    broken = new Promise<never>((_, reject) => {
      mine.on('error', () => {})
      mine.on('close', () => {
        if (socket === mine) socket = undefined
        reject(Object.assign(new Error('the broker closed the connection'), { code: 'ECONNRESET' }))
      })
    })
    broken.catch(() => {})
  }
  return {
    name: 'tcp',
    features: {},
    async publish(messages): Promise<Outcome[]> {
      if (socket === undefined) open()
      const confirmed = messages.map(({ id }) => new Promise<void>((resolve) => waiting.set(id, resolve)))
      socket!.write(messages.map(({ id }) => `${id}\n`).join(''))
      await Promise.race([Promise.all(confirmed), broken])
      return messages.map(() => OK)
    },
    async close() {
      socket?.destroy()
    },
  }
}
