import { lookup as systemLookup } from 'node:dns'
import { isIP, isIPv4, type LookupFunction } from 'node:net'
import { describe, WaybillError } from '../../core/index.ts'

/** An address as 16 bytes; one of IPv4 is in its mapped form, so that both compare alike. */
type Bytes = readonly number[]

interface Range {
  readonly base: Bytes
  readonly bits: number
}

const MAPPED = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]

/**
 * Networks that are nobody's on the internet: this machine, private and carrier networks, link-local ones with the
 * metadata services of clouds, documentation, multicast, reserved.
 */
const NOT_PUBLIC = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  '::/127',
  '64:ff9b:1::/48',
  '100::/64',
  '100:0:0:1::/64',
  '2001::/23',
  '2001:db8::/32',
  '3fff::/20',
  '5f00::/16',
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
].map((text) => rangeOf(text)!)

/** Networks whose addresses carry one of IPv4, and where in it: what is reached is that one. */
const CARRIERS = [
  { range: rangeOf('64:ff9b::/96')!, at: 12 },
  { range: rangeOf('2002::/16')!, at: 2 },
  { range: rangeOf('::/96')!, at: 12 },
  { range: rangeOf('::ffff:0:0:0/96')!, at: 12 },
]

/** Whether the address is one of the public internet. What cannot be read is not. */
export function isPublic(address: string): boolean {
  const bytes = bytesOf(address)
  return bytes !== undefined && isPublicBytes(bytes)
}

function isPublicBytes(bytes: Bytes): boolean {
  if (NOT_PUBLIC.some((range) => within(bytes, range))) return false
  const carrier = CARRIERS.find(({ range }) => within(bytes, range))
  return carrier === undefined || isPublicBytes([...MAPPED, ...bytes.slice(carrier.at, carrier.at + 4)])
}

/** Hosts by name, and addresses by network, that may be reached although they are not public. */
export class AllowList {
  readonly #hosts = new Set<string>()
  readonly #suffixes: string[] = []
  readonly #ranges: Range[] = []

  constructor(where: string, entries: readonly string[]) {
    if (!Array.isArray(entries)) throw notAllowed(where, entries)
    for (const entry of entries) {
      const range = typeof entry === 'string' ? rangeOf(entry) : undefined
      if (range !== undefined) this.#ranges.push(range)
      else if (
        typeof entry !== 'string' ||
        !/^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$/i.test(entry) ||
        /^[\d.]+$/.test(entry)
      )
        throw notAllowed(where, entry)
      else if (entry.startsWith('*.')) this.#suffixes.push(entry.slice(1).toLowerCase())
      else this.#hosts.add(entry.toLowerCase())
    }
  }

  host(name: string): boolean {
    const lower = name.toLowerCase()
    return this.#hosts.has(lower) || this.#suffixes.some((suffix) => lower.endsWith(suffix))
  }

  address(address: string): boolean {
    const bytes = bytesOf(address)
    return bytes !== undefined && this.#ranges.some((range) => within(bytes, range))
  }
}

function notAllowed(where: string, entry: unknown): WaybillError {
  return new WaybillError(
    'INVALID_OPTION',
    `${where}: allow: ${describe(entry)} is neither a host nor a network; give a list such as ["hooks.internal", "*.corp", "10.1.0.0/16", "::1"]`,
  )
}

function within(bytes: Bytes, { base, bits }: Range): boolean {
  for (let i = 0, left = bits; left > 0; i++, left -= 8) {
    const mask = left >= 8 ? 255 : 256 - 2 ** (8 - left)
    if ((bytes[i]! & mask) !== (base[i]! & mask)) return false
  }
  return true
}

function rangeOf(text: string): Range | undefined {
  const [address, width, ...more] = text.split('/')
  const base = bytesOf(address!)
  if (base === undefined || more.length > 0) return undefined
  const size = isIPv4(address!) ? 32 : 128
  if (width !== undefined && !/^\d{1,3}$/.test(width)) return undefined
  const bits = width === undefined ? size : Number(width)
  return bits > size ? undefined : { base, bits: bits + 128 - size }
}

export function bytesOf(text: string): Bytes | undefined {
  // A scope says through which card, not to whom.
  const address = text.split('%', 1)[0]!
  const family = isIP(address)
  if (family === 4) return [...MAPPED, ...address.split('.').map(Number)]
  if (family === 0) return undefined
  const tail = /(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(address)
  const pair = (high: string, low: string) => (Number(high) * 256 + Number(low)).toString(16)
  const plain = tail === null ? address : `${tail[1]}${pair(tail[2]!, tail[3]!)}:${pair(tail[4]!, tail[5]!)}`
  const [head, rest] = plain.split('::') as [string, string?]
  const groups = (part: string | undefined) => (part === undefined || part === '' ? [] : part.split(':'))
  const [first, last] = [groups(head), groups(rest)]
  const zeros = rest === undefined ? [] : new Array<string>(8 - first.length - last.length).fill('0')
  return [...first, ...zeros, ...last].flatMap((group) => {
    const value = Number.parseInt(group, 16)
    return [value >> 8, value & 255]
  })
}

/** How a name becomes addresses: `dns.lookup` and whatever has its signature. */
export type Lookup = LookupFunction

interface LookupAddress {
  readonly address: string
  readonly family: number
}

/**
 * Keeps requests out of networks that are not public: this machine, the ones behind it, the metadata service of its
 * cloud. It looks at the address that is then connected to, not at the name, and not at an earlier answer for it: a
 * name may mean something else a moment later.
 */
export class AddressGuard {
  readonly #allow: AllowList
  readonly #lookup: Lookup

  constructor(where: string, allow: readonly string[], lookup: Lookup = systemLookup as Lookup) {
    this.#allow = new AllowList(where, allow)
    this.#lookup = lookup
  }

  /** Whether the host, or the address it is, was named as one that may be reached. */
  named(host: string): boolean {
    return this.#allow.host(host) || this.#allow.address(host.replace(/^\[|\]$/g, ''))
  }

  /** A host that is an address is never looked up: it is judged here. */
  checkHost(host: string): void {
    const plain = host.replace(/^\[|\]$/g, '')
    if (isIP(plain) !== 0 && !this.#allows(plain)) throw blocked(host)
  }

  /** Given to the connection: what it returns is what is connected to. */
  readonly lookup: Lookup = (host, options, answer) => {
    this.#lookup(host, { ...options, all: true }, (error, addresses) => {
      if (error !== null && error !== undefined) {
        answer(error, '', 0)
        return
      }
      const found = addresses as unknown as readonly LookupAddress[]
      const allowed = this.#allow.host(host) ? found : found.filter(({ address }) => this.#allows(address))
      const first = allowed[0]
      if (first === undefined) answer(blocked(host), '', 0)
      else if (options.all === true)
        (answer as unknown as (error: null, all: readonly LookupAddress[]) => void)(null, allowed)
      else answer(null, first.address, first.family)
    })
  }

  /** Whether the host can be resolved to an address that may be reached. */
  async resolve(host: string): Promise<void> {
    this.checkHost(host)
    if (isIP(host.replace(/^\[|\]$/g, '')) !== 0) return
    await new Promise<void>((resolve, reject) => {
      this.lookup(host, {}, (error) => (error === null || error === undefined ? resolve() : reject(error)))
    })
  }

  #allows(address: string): boolean {
    return isPublic(address) || this.#allow.address(address)
  }
}

/** Without the address: an answer to whoever chose the name must not map the network behind us. */
function blocked(host: string): WaybillError {
  return new WaybillError(
    'BLOCKED_ADDRESS',
    `${host} is not on the public internet; name it in \`allow\` if requests may go there`,
  )
}
