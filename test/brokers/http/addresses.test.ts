import { lookup as systemLookup } from 'node:dns'
import fc from 'fast-check'
import { afterEach, describe, expect, test } from 'vitest'
import { AllowList, bytesOf, isPublic } from '../../../src/brokers/http/addresses.ts'
import { httpSender, type Lookup } from '../../../src/brokers/http/index.ts'
import { message, NEVER, SECRET, sender, serve } from './support.ts'

const PRIVATE = [
  ...[
    '127.0.0.1',
    '127.255.255.254',
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '10.255.255.255',
    '172.16.0.1',
    '172.31.255.255',
  ],
  ...['192.168.1.1', '169.254.169.254', '169.254.0.1', '100.64.0.1', '100.127.255.255', '192.0.0.1', '192.0.2.1'],
  ...['198.18.0.1', '198.51.100.1', '203.0.113.1', '224.0.0.1', '239.1.1.1', '240.0.0.1', '255.255.255.255'],
  ...['::', '::1', 'fc00::1', 'fd12:3456::1', 'fe80::1', 'fe80::1%eth0', 'fec0::1', 'ff02::1', '2001:db8::1', '100::1'],
  ...['::ffff:127.0.0.1', '::ffff:7f00:1', '::ffff:10.0.0.1', '::ffff:169.254.169.254', '::ffff:c0a8:0101'],
  // An address of IPv4 inside one of IPv6: NAT64, 6to4, the old compatible form, Teredo.
  ...[
    '64:ff9b::7f00:1',
    '64:ff9b::10.0.0.1',
    '64:ff9b:1::1',
    '2002:7f00:1::',
    '2002:a9fe:a9fe::1',
    '::127.0.0.1',
    '2001::1',
    '::ffff:0:127.0.0.1',
    '::ffff:0:a9fe:a9fe',
  ],
  // Documentation and segment routing, since 2024.
  ...['3fff::1', '3fff:fff:ffff::1', '5f00::1', '100:0:0:1::1'],
]
const PUBLIC = [
  ...['1.1.1.1', '8.8.8.8', '100.63.255.255', '100.128.0.1', '172.15.0.1', '172.32.0.1', '192.167.1.1', '169.253.1.1'],
  ...['2606:4700::1111', '2a00:1450::1', '::ffff:8.8.8.8', '64:ff9b::808:808', '2002:808:808::1'],
  ...['::ffff:0:8.8.8.8', '4000::1', '5f01::1'],
]

/** First and last of each network of the registries that is not public, and its neighbours where those are. */
const NETWORKS: [network: string, first: string, last: string, ...neighbours: string[]][] = [
  ['0.0.0.0/8', '0.0.0.0', '0.255.255.255', '1.0.0.0'],
  ['10.0.0.0/8', '10.0.0.0', '10.255.255.255', '9.255.255.255', '11.0.0.0'],
  ['100.64.0.0/10', '100.64.0.0', '100.127.255.255', '100.63.255.255', '100.128.0.0'],
  ['127.0.0.0/8', '127.0.0.0', '127.255.255.255', '126.255.255.255', '128.0.0.0'],
  ['169.254.0.0/16', '169.254.0.0', '169.254.255.255', '169.253.255.255', '169.255.0.0'],
  ['172.16.0.0/12', '172.16.0.0', '172.31.255.255', '172.15.255.255', '172.32.0.0'],
  ['192.0.0.0/24', '192.0.0.0', '192.0.0.255', '191.255.255.255', '192.0.1.0'],
  ['192.0.2.0/24', '192.0.2.0', '192.0.2.255', '192.0.1.255', '192.0.3.0'],
  ['192.88.99.0/24', '192.88.99.0', '192.88.99.255', '192.88.98.255', '192.88.100.0'],
  ['192.168.0.0/16', '192.168.0.0', '192.168.255.255', '192.167.255.255', '192.169.0.0'],
  ['198.18.0.0/15', '198.18.0.0', '198.19.255.255', '198.17.255.255', '198.20.0.0'],
  ['198.51.100.0/24', '198.51.100.0', '198.51.100.255', '198.51.99.255', '198.51.101.0'],
  ['203.0.113.0/24', '203.0.113.0', '203.0.113.255', '203.0.112.255', '203.0.114.0'],
  ['224.0.0.0/4 and 240.0.0.0/4', '224.0.0.0', '255.255.255.255', '223.255.255.255'],
  ['240.0.0.0/4', '239.255.255.255', '240.0.0.0'],
  ['64:ff9b:1::/48', '64:ff9b:1::', '64:ff9b:1:ffff:ffff:ffff:ffff:ffff', '64:ff9b:2::'],
  ['100::/64', '100::', '100::ffff:ffff:ffff:ffff', 'ff:ffff::', '100:0:0:2::'],
  ['100:0:0:1::/64', '100:0:0:1::', '100:0:0:1:ffff:ffff:ffff:ffff', '100:0:0:2::'],
  ['2001::/23', '2001::', '2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff', '2000:ffff::', '2001:200::'],
  ['2001:db8::/32', '2001:db8::', '2001:db8:ffff:ffff:ffff:ffff:ffff:ffff', '2001:db7:ffff::', '2001:db9::'],
  ['3fff::/20', '3fff::', '3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff', '3ffe:ffff::', '3fff:1000::'],
  ['5f00::/16', '5f00::', '5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff', '5eff:ffff::', '5f01::'],
  ['fc00::/7', 'fc00::', 'fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', 'fbff:ffff::', 'fe00::'],
  ['fe80::/10 and fec0::/10', 'fe80::', 'feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff', 'fe7f:ffff::'],
  ['fec0::/10', 'febf:ffff::', 'fec0::'],
  ['ff00::/8', 'ff00::', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
]

describe('addresses', () => {
  test.each(NETWORKS)(
    '%s is refused from its first address to its last, and no further',
    (_, first, last, ...others) => {
      expect([first, last].map(isPublic)).toEqual([false, false])
      expect(others.filter((address) => !isPublic(address))).toEqual([])
    },
  )

  test.each(PRIVATE)('%s is not public', (address) => expect(isPublic(address)).toBe(false))
  test.each(PUBLIC)('%s is public', (address) => expect(isPublic(address)).toBe(true))
  test.each(['', 'localhost', '1.2.3', '1.2.3.4.5', '01.2.3.4x', '::g', '1::2::3', '[::1]'])(
    'what is no address is not public: %j',
    (text) => expect(isPublic(text)).toBe(false),
  )

  test('any address is read as 16 bytes, whatever its form', () => {
    fc.assert(
      fc.property(fc.ipV6(), (address) => {
        expect(bytesOf(address)?.length).toBe(16)
      }),
    )
    fc.assert(
      fc.property(fc.ipV4(), (address) => {
        expect(isPublic(`::ffff:${address}`)).toBe(isPublic(address))
      }),
    )
  })

  test('the allow list takes hosts, suffixes, addresses and networks', () => {
    const list = new AllowList('here', ['Hooks.internal', '*.corp', '10.1.0.0/16', '::1', '192.168.7.7'])
    expect(['hooks.internal', 'HOOKS.INTERNAL', 'a.b.corp'].map((host) => list.host(host))).toEqual([true, true, true])
    expect(['internal', 'x.hooks.internal', 'corp', 'notcorp'].map((host) => list.host(host))).toEqual([
      false,
      false,
      false,
      false,
    ])
    expect(['10.1.2.3', '::ffff:10.1.2.3', '::1', '192.168.7.7'].map((at) => list.address(at))).toEqual([
      true,
      true,
      true,
      true,
    ])
    expect(['10.2.0.1', '::2', '192.168.7.8'].map((at) => list.address(at))).toEqual([false, false, false])
  })

  test.each(['10.0.0.0/33', '10.0.0/8', 'http://x', '', 'a b', '1.2.3', '*'])('%j is no entry', (entry) => {
    expect(() => new AllowList('here', [entry])).toThrow(/neither a host nor a network/)
  })
})

/** A resolver that answers what it is told, one answer after the other. */
function resolver(...answers: string[][]): Lookup {
  return ((_host: string, options: { all?: boolean }, done: (...args: unknown[]) => void) => {
    const found = (answers.length > 1 ? answers.shift()! : answers[0]!).map((address) => ({
      address,
      family: address.includes(':') ? 6 : 4,
    }))
    if (options.all) done(null, found)
    else done(null, found[0]!.address, found[0]!.family)
  }) as Lookup
}

describe('the guard of private networks', () => {
  const open: { close(): Promise<void> }[] = []
  afterEach(async () => {
    for (const one of open.splice(0)) await one.close()
  })
  const make = (...args: Parameters<typeof httpSender>) => {
    const made = httpSender(...args)
    open.push(made)
    return made
  }

  test.each([
    'http://127.0.0.1/',
    'http://localhost.:80/'.replace('localhost.', '127.1'),
    'http://2130706433/',
    'http://0x7f000001/',
    'http://0177.0.0.1/',
    'http://[::1]/',
    'http://[::ffff:127.0.0.1]/',
    'http://[::ffff:0:127.0.0.1]/',
    'http://[64:ff9b::127.0.0.1]/',
    'http://[3fff::1]/',
    'http://[5f00::1]/',
    'http://169.254.169.254/latest/meta-data',
    'http://0.0.0.0/',
  ])('is on by default: %s is refused before anything is sent', (url) => {
    expect(() => make({ url, secrets: SECRET })).toThrow(/is not on the public internet/)
  })

  test('a name that leads to this machine shows at start, and nothing is ever sent', async () => {
    let requests = 0
    await using site = await serve((_, response) => {
      requests++
      response.end()
    })
    const to = make({ url: `http://localhost:${site.port}/`, secrets: SECRET, lookup: systemLookup as Lookup })
    await expect(to.start()).rejects.toMatchObject({ code: 'BLOCKED_ADDRESS' })
    const [outcome] = await to.publish([message()], NEVER)
    // It is the destination of all messages: not one of them is given up for a wrong answer of a name server.
    expect(outcome!.kind).toBe('down')
    expect(requests).toBe(0)
  })

  test('a name that means another address with the second question gains nothing', async () => {
    let requests = 0
    await using site = await serve((_, response) => {
      requests++
      response.end()
    })
    const lookup = resolver(['93.184.216.34'], ['127.0.0.1'])
    const to = make({ url: `http://rebinding.example:${site.port}/`, secrets: SECRET, lookup, timeout: 500 })
    await to.start()
    const [outcome] = await to.publish([message()], NEVER)
    expect(outcome!.kind).toBe('down')
    expect(requests).toBe(0)
  })

  test('of several addresses only the public ones are tried', async () => {
    let requests = 0
    await using site = await serve((_, response) => {
      requests++
      response.end()
    })
    const lookup = resolver(['127.0.0.1', '10.0.0.1'])
    const to = make({ url: () => `http://mixed.example:${site.port}/`, secrets: SECRET, lookup })
    const [outcome] = await to.publish([message()], NEVER)
    // A name server may be wrong for a moment, and then for every name: no message is refused for good.
    expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'BLOCKED_ADDRESS' } })
    expect(requests).toBe(0)
  })

  test('a URL for each message is judged each time', async () => {
    const to = make({ url: () => 'http://[::ffff:10.0.0.1]/', secrets: SECRET })
    const [outcome] = await to.publish([message()], NEVER)
    expect(outcome).toMatchObject({ kind: 'rejected', error: { code: 'BLOCKED_ADDRESS' } })
  })

  test('what is allowed is reached, by network and by name', async () => {
    await using site = await serve((_, response) => response.writeHead(204).end())
    for (const [host, allow] of [
      ['127.0.0.1', ['127.0.0.0/8']],
      ['localhost', ['localhost']],
      ['localhost', ['127.0.0.1', '::1']],
    ] as const) {
      const to = sender(`http://${host}:${site.port}/`, { allow })
      open.push(to)
      await to.start()
      expect((await to.publish([message()], NEVER))[0]!.kind).toBe('ok')
    }
  })

  test('a redirect to this machine is not followed', async () => {
    let inside = 0
    await using secret = await serve((_, response) => {
      inside++
      response.end()
    })
    await using site = await serve((_, response) => response.writeHead(307, { location: secret.url }).end())
    const to = sender(site.url)
    open.push(to)
    expect((await to.publish([message()], NEVER))[0]!.kind).toBe('down')
    expect(inside).toBe(0)
  })
})
