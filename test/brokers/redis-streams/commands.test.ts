import { Redis } from 'ioredis'
import { expect, test } from 'vitest'
import { redisStreams } from '../../../src/brokers/redis-streams/index.ts'
import { lua } from '../../../src/brokers/redis-streams/lua.generated.ts'
import { DONE, systemClock } from '../../../src/core/index.ts'
import { brokerSuite } from '../../../src/testing/index.ts'
import { standalone } from '../../support/redis-topologies.ts'
import { describeWith } from '../../support/services.ts'
import { factory, fresh, ioredis, message, NEVER, receive } from './support.ts'

/**
 * Every command we send, and how it may look on 6.0. A command that is not here is a command nobody has looked up; a
 * word in `later` came with a later version (6.2, 7.0, …).
 */
const COMMANDS: Record<string, { subcommands?: string[]; later?: string[]; most?: number }> = {
  xadd: { later: ['NOMKSTREAM', 'MINID', 'LIMIT'] },
  xreadgroup: { later: ['CLAIM'] },
  xack: {},
  xclaim: { later: ['LASTID'] },
  // With IDLE, since 6.2, there is one more.
  xpending: { later: ['IDLE'], most: 6 },
  xrange: {},
  xdel: {},
  xlen: {},
  xgroup: { subcommands: ['CREATE', 'DELCONSUMER'], later: ['ENTRIESREAD'] },
  xinfo: { subcommands: ['GROUPS', 'CONSUMERS'], later: ['FULL'] },
  exists: {},
  sadd: {},
  sismember: {},
  expire: { most: 2 },
  time: {},
  type: {},
  wait: {},
  info: { most: 1 },
  eval: {},
  evalsha: {},
  command: { subcommands: ['INFO'] },
  config: { subcommands: ['GET'], most: 2 },
  client: { subcommands: ['ID', 'UNBLOCK'], later: ['TIMEOUT', 'ERROR'] },
}

/** What drivers say by themselves when they connect; they bear it when the server does not know it. */
const HANDSHAKE = /^(client (setinfo|setname)|hello|select|auth|info$)/i

function problemOf(args: readonly string[]): string | undefined {
  const name = args[0]!.toLowerCase()
  const rule = COMMANDS[name]
  const text = args.slice(0, 8).join(' ')
  if (rule === undefined) return `${name} is not in the table: ${text}`
  const { subcommands, later = [], most = Number.POSITIVE_INFINITY } = rule
  if (subcommands !== undefined && !subcommands.includes(args[1]!.toUpperCase())) return `unknown subcommand: ${text}`
  if (args.length - 1 > most) return `more arguments than 6.0 knows: ${text}`
  // What comes after the id of an entry is the user's.
  const words = name === 'xadd' ? args.slice(1, args.indexOf('*')) : name === 'eval' || name === 'evalsha' ? [] : args
  const word = words.slice(1).find((arg) => later.includes(arg.toUpperCase()) || /^\(\d/.test(arg))
  return word === undefined ? undefined : `${word} came after 6.0: ${text}`
}

test('the scripts call nothing that came after 6.0', () => {
  for (const [name, text] of Object.entries(lua)) {
    const calls = [...text.matchAll(/redis\.p?call\(([^\n]*)/g)].map(([, rest]) => rest!)
    expect(calls.length).toBeGreaterThan(0)
    for (const call of calls) {
      const words = [...call.matchAll(/'([^']*)'/g)].map(([, word]) => word!)
      expect(problemOf(words[0] === 'XADD' ? [...words, '*'] : words), `${name}.lua`).toBeUndefined()
    }
  }
  expect(problemOf(['XPENDING', 's', 'g', 'IDLE', '5', '-', '+', '1'])).toMatch(/6\.0/)
  expect(problemOf(['XADD', 's', 'NOMKSTREAM', '*', 'a', 'b'])).toMatch(/NOMKSTREAM/)
  expect(problemOf(['XAUTOCLAIM', 's'])).toMatch(/not in the table/)
  expect(problemOf(['XRANGE', 's', '(1-1', '+'])).toMatch(/came after/)
})

describeWith(['redis'], 'redis streams, as the server hears them', () => {
  test('no command, subcommand or argument that came after 6.0 is sent', { timeout: 120_000 }, async () => {
    const server = await standalone()
    const monitor = await new Redis(server.url).monitor()
    const heard: string[][] = []
    monitor.on('monitor', (_time: string, args: string[]) => heard.push(args))
    for (const { skip, run } of brokerSuite(factory('monitored', () => ioredis(server.url)))) {
      if (skip === undefined) await run()
    }
    const stream = fresh()
    const broker = redisStreams({ client: ioredis(server.url), durability: { replicas: 1, within: 1 } })
    const publisher = broker.publisher({ stream, maxLen: 100 })
    await publisher.publish([message()], NEVER)
    const source = broker.source({ stream, group: 'g', consumer: 'c', remove: true, block: 20, reclaim: { every: 0 } })
    const session = await source.open()
    const taken = await receive(session, 1)
    await session.extend(taken)
    await session.settle(taken.map((delivery) => [delivery, { kind: 'dead', reason: 'r', error: undefined }]))
    const [letter] = await source.deadLetters()
    await source.rearm(letter!.id)
    const again = await receive(session, 1)
    await session.settle(again.map((delivery) => [delivery, DONE]))
    await source.stats()
    await broker.trimmer({ stream }).runOnce()
    await source.discard('1-1')
    await session.close()
    await systemClock.sleep(100)
    monitor.disconnect()
    const ours = heard.filter((args) => !HANDSHAKE.test(args.join(' ')))
    expect(ours.length).toBeGreaterThan(1000)
    expect([...new Set(ours.map(problemOf).filter((problem) => problem !== undefined))]).toEqual([])
    const used = new Set(ours.map(([name]) => name!.toLowerCase()))
    for (const name of ['xadd', 'xreadgroup', 'xclaim', 'xpending', 'xack', 'xdel', 'xinfo', 'wait', 'evalsha']) {
      expect(used, 'scripts are heard too').toContain(name)
    }
    await publisher.close!()
    await broker.close()
  })
})
