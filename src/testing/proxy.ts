import { randomInt } from 'node:crypto'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { type Direction, Faults, type ProxiedConnection, ProxyDirection } from './proxy-direction.ts'

export type { Direction } from './proxy-direction.ts'

/** The server that a fault proxy stands in front of. */
export interface FaultProxyOptions {
  /** The server to stand in front of. */
  host: string
  port: number
  /** Where the proxy listens; a free port of its own choice by default. */
  listen?: number
  /** For the jitter; give a seeded one to repeat a test exactly. */
  random?: () => number
}

/**
 * A TCP proxy that is a bad network on demand: between your code and a real server, without touching either. Faults
 * concern the connections that are open and those that come, add up, and last until `restore()`.
 */
export interface FaultProxy extends AsyncDisposable {
  readonly host: string
  readonly port: number
  /** Open connections of clients. */
  readonly connections: number
  /** The same URL, through the proxy. */
  url(original: string): string
  /** Resets every open connection. New ones are welcome. */
  cut(): void
  /** Stops listening and resets every open connection: connection refused. */
  refuse(): Promise<void>
  /** Accepts and keeps connections, forwards nothing. What was held arrives after `restore()`: late, not lost. */
  blackHole(): void
  /** One direction is lost while the other works; both stay open. `restore()` resets connections that lost bytes. */
  halfOpen(direction: Direction): void
  /** Delays every byte, each way, by this and up to `jitter` more. Order is kept. */
  latency(milliseconds: number, jitter?: number): void
  /** Forwards no faster than this, for each connection and direction. */
  drip(bytesPerSecond: number): void
  /**
   * Lets exactly so many more bytes pass in the direction, then ends the connection that carried the last of them.
   * Happens once. Resolves true when it did, false when `restore()` or `close()` came first.
   */
  cutAfter(bytes: number, direction: Direction): Promise<boolean>
  /** Ends all faults, listens again. */
  restore(): Promise<void>
  /** Resets what is open and stops for good. */
  close(): Promise<void>
}

/** Starts a proxy that is a bad network on demand. */
export async function faultProxy(options: FaultProxyOptions): Promise<FaultProxy> {
  const faults = new Faults()
  const links = new Set<Link>()
  const random = options.random ?? Math.random
  const accept = (client: Socket) => {
    links.add(new Link(client, options, faults, random, (link) => links.delete(link)))
  }
  const cut = () => {
    for (const link of links) link.cut()
  }
  let server: Server | null = await open(accept, options.listen)
  const port = portOf(server)

  const silence = async () => {
    const closing = server
    server = null
    const closed = closing ? new Promise((resolve) => closing.close(resolve)) : null
    cut()
    await closed
  }
  const close = async () => {
    const done = silence()
    faults.clear()
    await done
  }

  return {
    host: '127.0.0.1',
    port,
    get connections() {
      return links.size
    },
    url(original) {
      const url = new URL(original)
      url.hostname = '127.0.0.1'
      url.port = String(port)
      return url.href
    },
    cut,
    refuse: silence,
    blackHole: () => faults.blackHole(),
    halfOpen(direction) {
      faults.swallowed = direction
    },
    latency(milliseconds, jitter = 0) {
      faults.latency = positive('latency', milliseconds)
      faults.jitter = positive('jitter', jitter)
    },
    drip(bytesPerSecond) {
      if (!(bytesPerSecond > 0)) throw new RangeError(`drip needs a rate above 0, got ${bytesPerSecond}`)
      faults.bytesPerSecond = bytesPerSecond
    },
    cutAfter(bytes, direction) {
      faults.cuts.get(direction)?.done(false)
      return new Promise((done) => faults.cuts.set(direction, { left: positive('bytes', bytes), done }))
    },
    async restore() {
      for (const link of links) if (link.lossy) link.cut()
      faults.clear()
      server ??= await open(accept, port)
    },
    close,
    [Symbol.asyncDispose]: close,
  }
}

/** A client's connection and ours to the server. */
class Link implements ProxiedConnection {
  lossy = false
  readonly #gone = new AbortController()
  readonly #client: Socket
  #server: Socket | null = null

  constructor(
    client: Socket,
    target: { host: string; port: number },
    faults: Faults,
    random: () => number,
    private readonly forget: (link: Link) => void,
  ) {
    this.#client = client
    // Until both directions listen; a socket without a listener would end the process.
    client.on('error', () => {})
    // In a black hole even the connection attempt does not get through.
    void faults.passable().then(() => {
      if (this.signal.aborted) return
      const server = connect({ ...target, allowHalfOpen: true, noDelay: true })
      this.#server = server
      new ProxyDirection(this, 'upstream', client, server, faults, random)
      new ProxyDirection(this, 'downstream', server, client, faults, random)
      for (const socket of [client, server]) {
        socket.on('close', () => client.destroyed && server.destroyed && this.cut())
      }
    })
  }

  get signal(): AbortSignal {
    return this.#gone.signal
  }

  cut(): void {
    if (this.signal.aborted) return
    this.#gone.abort()
    for (const socket of [this.#client, this.#server]) {
      // The system refuses to reset what has been ended properly; it is closed then.
      if (socket?.writableEnded) socket.destroy()
      else if (socket && !socket.destroyed) socket.resetAndDestroy()
    }
    this.forget(this)
  }
}

/**
 * Not a port that the system chooses: it would be one of those it also gives to outgoing connections, and while the
 * proxy refuses, a client that keeps trying could be given the very port it tries, and be connected to itself.
 */
async function open(accept: (client: Socket) => void, port?: number): Promise<Server> {
  for (let attempt = 1; ; attempt++) {
    const server = createServer({ allowHalfOpen: true, noDelay: true }, accept)
    const error = await new Promise<NodeJS.ErrnoException | null>((resolve) => {
      server.once('error', resolve)
      server.listen(port ?? randomInt(15_000, 32_700), '127.0.0.1', () => resolve(null))
    })
    if (!error) return server
    if (port !== undefined || error.code !== 'EADDRINUSE' || attempt >= 50) throw error
  }
}

function portOf(server: Server): number {
  return (server.address() as { port: number }).port
}

function positive(name: string, value: number): number {
  if (!(value >= 0)) throw new RangeError(`${name} must be 0 or more, got ${value}`)
  return value
}
