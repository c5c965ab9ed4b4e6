import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { type FaultProxy, faultProxy } from '../../src/testing/proxy.ts'

/** Collects what a socket receives; `until` waits for a number of bytes, not for time. */
class Ear {
  text = ''
  ended = false
  error: NodeJS.ErrnoException | null = null
  readonly closed: Promise<unknown>
  #wake = () => {}

  constructor(readonly socket: Socket) {
    socket.on('data', (bytes) => {
      this.text += bytes
      this.#wake()
    })
    socket.on('end', () => {
      this.ended = true
      this.#wake()
    })
    socket.on('error', (error) => {
      this.error = error
    })
    this.closed = new Promise((resolve) => socket.on('close', resolve))
  }

  async until(check: (ear: Ear) => boolean): Promise<string> {
    while (!check(this)) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    return this.text
  }
}

let server: Server
let proxy: FaultProxy
const accepted: Ear[] = []
const arrivals: (() => void)[] = []

beforeEach(async () => {
  accepted.length = 0
  server = createServer({ allowHalfOpen: true }, (socket) => {
    accepted.push(new Ear(socket))
    for (const arrival of arrivals.splice(0)) arrival()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  proxy = await faultProxy({ host: '127.0.0.1', port: (server.address() as AddressInfo).port })
})

afterEach(async () => {
  await proxy.close()
  for (const { socket } of accepted) socket.destroy()
  server.close()
})

async function client(port = proxy.port): Promise<Ear> {
  const socket = connect({ host: '127.0.0.1', port, allowHalfOpen: true })
  await once(socket, 'connect')
  return new Ear(socket)
}

/** A client and the server's end of the same connection. */
async function pair(port = proxy.port): Promise<[Ear, Ear]> {
  const arrived = new Promise<void>((resolve) => arrivals.push(resolve))
  const near = await client(port)
  await arrived
  return [near, accepted.at(-1)!]
}

async function says(from: Ear, to: Ear, text: string): Promise<void> {
  const before = to.text.length
  from.socket.write(text)
  await to.until((ear) => ear.text.length >= before + text.length)
  expect(to.text.slice(before)).toBe(text)
}

/** Three times there and back beside the proxy: what the proxy was going to forward has been forwarded by then. */
async function meanwhile(): Promise<void> {
  const [near, far] = await pair((server.address() as AddressInfo).port)
  for (let round = 0; round < 3; round++) {
    await says(near, far, 'tick')
    await says(far, near, 'tock')
  }
  near.socket.destroy()
}

describe('without faults', () => {
  test('bytes pass both ways, and so does the end of either side', async () => {
    const [near, far] = await pair()
    await says(near, far, 'question')
    await says(far, near, 'answer')
    near.socket.end()
    await far.until((ear) => ear.ended)
    await says(far, near, 'last words')
    far.socket.end()
    await near.closed
    expect(near.error).toBeNull()
  })

  test('five megabytes arrive whole and in order', async () => {
    const [near, far] = await pair()
    const sent = Array.from({ length: 500_000 }, (_, index) => String(index).padStart(10, '.')).join('')
    near.socket.end(sent)
    expect((await far.until((ear) => ear.ended)) === sent).toBe(true)
  })

  test('a URL is rewritten to lead through the proxy, all else kept', () => {
    const { port } = proxy
    expect(proxy.url('postgres://u:p%40@db.example:5432/shop?ssl=0')).toBe(
      `postgres://u:p%40@127.0.0.1:${port}/shop?ssl=0`,
    )
    expect(proxy.url('amqp://guest@db.example')).toBe(`amqp://guest@127.0.0.1:${port}`)
    expect(port).toBeLessThan(32_768)
  })

  test('a server that is not there is a reset for the client', async () => {
    server.close()
    const near = await client()
    await near.closed
    expect(near.socket.destroyed).toBe(true)
  })
})

test('connections are counted', async () => {
  const [one] = await pair()
  await pair()
  expect(proxy.connections).toBe(2)
  one.socket.resetAndDestroy()
  await accepted[0]!.closed
  expect(proxy.connections).toBe(1)
})

test('cut resets both ends; the next connection works', async () => {
  const [near, far] = await pair()
  proxy.cut()
  await Promise.all([near.closed, far.closed])
  expect(near.error?.code).toBe('ECONNRESET')
  expect(far.error?.code).toBe('ECONNRESET')
  expect(proxy.connections).toBe(0)
  await says(...(await pair()), 'again')
})

test('refuse resets what is open and refuses what comes, until restore', async () => {
  const [near] = await pair()
  await proxy.refuse()
  await near.closed
  await expect(client()).rejects.toThrow(/ECONNREFUSED/)
  await proxy.restore()
  await says(...(await pair()), 'welcome back')
})

describe('black hole', () => {
  test('holds both directions; all of it arrives after restore', async () => {
    const [near, far] = await pair()
    proxy.blackHole()
    near.socket.write('late question')
    far.socket.write('late answer')
    const other = await client()
    other.socket.write('hello')
    await meanwhile()
    expect([near.text, far.text, proxy.connections]).toEqual(['', '', 2])
    const arrived = new Promise<void>((resolve) => arrivals.push(resolve))
    await proxy.restore()
    await near.until((ear) => ear.text === 'late answer')
    await far.until((ear) => ear.text === 'late question')
    await arrived
    await accepted.at(-1)!.until((ear) => ear.text === 'hello')
  })

  test('a client that gives up is not noticed by the server before restore', async () => {
    const [near, far] = await pair()
    proxy.blackHole()
    near.socket.write('COMMIT')
    near.socket.destroy()
    await near.closed
    await meanwhile()
    expect([far.ended, far.text]).toEqual([false, ''])
    await proxy.restore()
    expect(await far.until((ear) => ear.ended)).toBe('COMMIT')
  })
})

describe('half-open', () => {
  test.each(['upstream', 'downstream'] as const)('%s is lost while the other direction works', async (direction) => {
    const [near, far] = await pair()
    const [deaf, mute] = direction === 'upstream' ? [far, near] : [near, far]
    proxy.halfOpen(direction)
    mute.socket.write('lost')
    await says(deaf, mute, 'heard')
    await meanwhile()
    expect(deaf.text).toBe('')
    await proxy.restore()
    // There is a hole in what it received: such a connection must not go on.
    await Promise.all([near.closed, far.closed])
    expect(deaf.text).toBe('')
    await says(...(await pair()), 'whole again')
  })

  test('a connection that lost nothing goes on after restore', async () => {
    const [near, far] = await pair()
    proxy.halfOpen('upstream')
    await says(far, near, 'one way')
    await proxy.restore()
    await says(near, far, 'both ways')
  })
})

test('latency delays each way, without adding up over a burst', async () => {
  const [near, far] = await pair()
  proxy.latency(300)
  const from = performance.now()
  for (let index = 0; index < 20; index++) near.socket.write('x')
  await far.until((ear) => ear.text.length === 20)
  const there = performance.now() - from
  far.socket.write('y')
  await near.until((ear) => ear.text === 'y')
  const back = performance.now() - from - there
  // A timer may fire up to a millisecond early; late depends on the machine, so the bound is generous.
  expect(there).toBeGreaterThan(298)
  expect(back).toBeGreaterThan(298)
  expect(there).toBeLessThan(5000)
})

test('jitter comes from the given random and keeps the order', async () => {
  await proxy.close()
  const draws = [1, 0, 0.5, 0]
  const { port } = server.address() as AddressInfo
  proxy = await faultProxy({ host: '127.0.0.1', port, random: () => draws.shift() ?? 0 })
  const [near, far] = await pair()
  proxy.latency(0, 80)
  const from = performance.now()
  await says(near, far, 'slow')
  expect(performance.now() - from).toBeGreaterThan(78)
  near.socket.write('a')
  near.socket.write('b')
  expect(await far.until((ear) => ear.text.length === 6)).toBe('slowab')
})

test('drip forwards no faster than asked', async () => {
  const [near, far] = await pair()
  proxy.drip(2000)
  const from = performance.now()
  near.socket.write('z'.repeat(400))
  await far.until((ear) => ear.text.length > 0)
  expect(far.text.length).toBeLessThan(400)
  await far.until((ear) => ear.text.length === 400)
  // The last slice of 40 bytes is not waited for.
  expect(performance.now() - from).toBeGreaterThan(175)
})

describe('cutAfter', () => {
  test.each(['upstream', 'downstream'] as const)(
    '%s: exactly so many bytes arrive, then the end',
    async (direction) => {
      const [near, far] = await pair()
      const [from, to] = direction === 'upstream' ? [near, far] : [far, near]
      const fired = proxy.cutAfter(7, direction)
      await says(from, to, '123')
      from.socket.write('456789')
      expect(await fired).toBe(true)
      expect(await to.until((ear) => ear.ended)).toBe('1234567')
      await from.closed
      expect(from.error?.code).toBe('ECONNRESET')
      await says(...(await pair()), 'only once: this is longer than seven bytes')
    },
  )

  test('resolves false when restore comes first', async () => {
    const fired = proxy.cutAfter(1, 'upstream')
    await proxy.restore()
    expect(await fired).toBe(false)
    await says(...(await pair()), 'all of it')
  })
})

test('close ends everything, also what a black hole holds, and may be called twice', async () => {
  const [near] = await pair()
  proxy.blackHole()
  near.socket.write('never')
  const waiting = await client()
  await proxy.close()
  await Promise.all([near.closed, waiting.closed])
  await proxy.close()
  await expect(client()).rejects.toThrow(/ECONNREFUSED/)
})

test('nonsense is refused at once', () => {
  expect(() => proxy.drip(0)).toThrow(/above 0/)
  expect(() => proxy.latency(-1)).toThrow(/latency must be 0 or more/)
  expect(() => proxy.latency(1, Number.NaN)).toThrow(/jitter must be 0 or more/)
})
