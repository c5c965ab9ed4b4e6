import { lookup as systemLookup } from 'node:dns'
import { isIP, type LookupFunction } from 'node:net'
import { WaybillError } from '../../core/index.ts'
import { AllowList, isPublic } from './addresses.ts'

/** How a name becomes addresses: `dns.lookup` and whatever has its signature. */
export type Lookup = LookupFunction

interface Found {
  readonly address: string
  readonly family: number
}

/**
 * Keeps requests out of networks that are not public: this machine, the ones behind it, the metadata service of its
 * cloud. It looks at the address that is then connected to, not at the name, and not at an earlier answer for it: a
 * name may mean something else a moment later.
 */
export class Guard {
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

  /** Given to the connection: what it answers is what is connected to. */
  readonly lookup: Lookup = (host, options, answer) => {
    this.#lookup(host, { ...options, all: true }, (error, addresses) => {
      if (error !== null && error !== undefined) {
        answer(error, '', 0)
        return
      }
      const found = addresses as unknown as readonly Found[]
      const allowed = this.#allow.host(host) ? found : found.filter(({ address }) => this.#allows(address))
      const first = allowed[0]
      if (first === undefined) answer(blocked(host), '', 0)
      else if (options.all === true) (answer as unknown as (error: null, all: readonly Found[]) => void)(null, allowed)
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
