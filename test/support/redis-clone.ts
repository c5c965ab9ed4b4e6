import { createServer, type Socket } from 'node:net'

type Answer = (words: string[]) => string

/** Something that speaks the protocol and knows few commands. */
export function clone(answer: Answer): Promise<{ url: string; close: () => void }> {
  const sockets = new Set<Socket>()
  const server = createServer((socket) => {
    sockets.add(socket)
    let rest = ''
    socket.on('error', () => {})
    socket.on('data', (chunk) => {
      rest += chunk.toString('latin1')
      for (;;) {
        const lines = rest.split('\r\n')
        const count = Number(/^\*(\d+)$/.exec(lines[0]!)?.[1] ?? Number.NaN)
        if (Number.isNaN(count) || lines.length < 1 + count * 2 + 1) return
        rest = lines.slice(1 + count * 2).join('\r\n')
        const words = Array.from({ length: count }, (_, i) => lines[2 + i * 2]!.toLowerCase())
        socket.write(words[0] === 'client' || words[0] === 'select' ? '+OK\r\n' : answer(words))
      }
    })
  })
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      const close = () => {
        for (const socket of sockets) socket.destroy()
        server.close()
      }
      resolve({ url: `redis://127.0.0.1:${(server.address() as { port: number }).port}`, close })
    })
  })
}

const unknown = (name: string) => `-ERR unknown command '${name}'\r\n`
const bulk = (text: string) => `$${text.length}\r\n${text}\r\n`

export const clones: Record<string, { says: RegExp; answer: Answer }> = {
  'Redis 4': {
    says: /a server without streams; .*need .*Redis 5 or later/,
    answer: ([name]) =>
      name === 'info' ? bulk('redis_version:4.0.14\r\n') : name === 'command' ? '*1\r\n*-1\r\n' : unknown(name!),
  },
  'one that tells an old version': {
    says: /this is version 4\.9\.9; .*need .*Redis 5 or later/,
    answer: ([name]) => {
      if (name === 'command') return '*1\r\n*1\r\n+xreadgroup\r\n'
      return name === 'info' || name === 'evalsha' ? bulk('redis_version:4.9.9\r\n') : unknown(name!)
    },
  },
  'one without scripts': {
    says: /a server without scripts; .*need .*Redis 5 or later/,
    answer: ([name]) => (name === 'info' ? bulk('redis_version:7.0.0\r\n') : unknown(name!)),
  },
}
