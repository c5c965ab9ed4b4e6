/** Where a client connects to, as far as its settings say; all parts may be missing. */
export interface Address {
  readonly host?: string
  readonly port?: number | string
  /** A socket of this machine. */
  readonly path?: string
}

/** One server, or several that know each other, by name: its addresses, and what else tells it from others behind them. */
export function serverOf(addresses: readonly Address[], more = ''): string | undefined {
  if (addresses.length === 0) return undefined
  return `${addresses.map(nameOf).sort().join(',')} ${more}`
}

function nameOf({ host = '127.0.0.1', port = 6379, path }: Address): string {
  if (path !== undefined) return path
  return `${host === 'localhost' || host === '::1' ? '127.0.0.1' : host.toLowerCase()}:${port}`
}

/** `redis://host:port` or `host:port`, or a number, which is a port. */
export function addressIn(given: unknown): Address {
  if (typeof given === 'number') return { port: given }
  if (typeof given !== 'string') return (given ?? {}) as Address
  try {
    const { hostname, port } = new URL(given.includes('://') ? given : `redis://${given}`)
    return { host: hostname, ...(port === '' ? {} : { port }) }
  } catch {
    return { path: given }
  }
}

/**
 * Whether two may be the same server: where that is not known, they may. One address in common is enough: clients of a
 * cluster, or of sentinels, need not be given all of the nodes.
 */
export function mayBeSame(a: string | undefined, b: string | undefined): boolean {
  if (a === undefined || b === undefined || a === b) return true
  const [[addresses, more], [others, othersMore]] = [partsOf(a), partsOf(b)]
  return more === othersMore && addresses.some((address) => others.includes(address))
}

function partsOf(server: string): [addresses: readonly string[], more: string] {
  const end = server.indexOf(' ')
  return [server.slice(0, end).split(','), server.slice(end + 1)]
}
