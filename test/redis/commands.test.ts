import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { WRITE_COMMANDS, WRITES } from '../../src/redis/commands.ts'
import { COMMANDS, calledIn, documented, isLater, problemOf, sentIn } from '../support/redis-6.ts'
import { describeWith, service } from '../support/services.ts'
import { reader } from './support.ts'

interface Known {
  readonly arity: number
  readonly flags: readonly string[]
  readonly keys: readonly [first: number, last: number, step: number]
}

for (const server of ['redis', 'redis6']) {
  describeWith([server], `the table of commands on ${server}`, () => {
    const known = async (): Promise<Map<string, Known>> => {
      const all = (await reader(service(server).url).call('command')) as [
        string,
        number,
        string[],
        number,
        number,
        number,
      ][]
      return new Map(
        all.map(([name, arity, flags, ...keys]) => [name, { arity, flags, keys: keys.slice(0, 3) as never }]),
      )
    }

    test.each(WRITE_COMMANDS)('%s writes, can be scripted, and has its keys where we look', async (name) => {
      const { arity, flags, keys } = (await known()).get(name)!
      const ours = WRITES[name] as { words: number; exact?: boolean; keys?: string; frees?: boolean }
      expect(flags).toContain('write')
      expect(flags).not.toContain('noscript')
      expect(ours.words).toBeGreaterThanOrEqual(Math.abs(arity) - 1)
      if (ours.exact) expect(ours.words).toBe(arity - 1)
      const places = { two: [1, 2, 1], all: [1, -1, 1], pairs: [1, -1, 2], counted: [1, 1, 1] } as const
      expect(keys).toEqual(places[ours.keys as keyof typeof places] ?? [1, 1, 1])
      expect(flags.includes('movablekeys')).toBe(ours.keys === 'counted')
    })

    test('what runs without memory and may come before what needs it is known', async () => {
      const table = await known()
      const free = WRITE_COMMANDS.filter((name) => !table.get(name)!.flags.includes('denyoom'))
      for (const name of free) {
        expect((WRITES[name] as { frees?: boolean }).frees, name).toBe(true)
      }
    })

    test('each type is what the server says: a key of another type is refused by it', async () => {
      const client = reader(service(server).url)
      const key = `types-${process.pid}`
      for (const name of WRITE_COMMANDS) {
        const { type, words, replaces } = WRITES[name] as { type?: string; words: number; replaces?: boolean }
        if (type === undefined || replaces) continue
        await client.del(key)
        if (type === 'hash') await client.rpush(key, 'x')
        else await client.hset(key, 'f', 'v')
        const args = [key, ...Array<string>(words - 1).fill('1')]
        if (name === 'linsert') args[1] = 'BEFORE'
        if (name === 'xadd') args.splice(1, 3, '*', 'f', 'v')
        if (name === 'xtrim') args.splice(1, 2, 'MAXLEN', '1')
        if (name === 'zremrangebylex') args.splice(1, 2, '-', '+')
        if (name === 'geoadd') args.splice(1, 3, '1', '1', 'm')
        await expect(client.call(name, ...args), name).rejects.toThrow(/WRONGTYPE/)
      }
      await client.del(key)
    })
  })
}

const SOURCE = join(import.meta.dirname, '../../src')

/** Path below src/ and text. */
function filesOf(folder: string, ending: string): [path: string, text: string][] {
  const names = readdirSync(join(SOURCE, folder)).filter((name) => name.endsWith(ending) && !/generated/.test(name))
  return names.map((name) => [`${folder}/${name}`, readFileSync(join(SOURCE, folder, name), 'utf8')])
}

/** Commands that are named elsewhere than where they are sent or called: how often, and what they are. */
const ELSEWHERE: Record<string, { times: number; are: string[] }> = {
  // What is queued: the table of writes.
  'redis/lua/commit.lua': { times: 1, are: [] },
  'redis/unit.ts': { times: 1, are: [] },
  'redis/lua/outbox-repair.lua': { times: 1, are: ['HSCAN', 'ZSCAN'] },
  'brokers/redis-streams/pull.ts': { times: 1, are: ['xreadgroup'] },
  'drivers/redis/checks.ts': { times: 2, are: ['exists', 'config', 'command'] },
  'drivers/redis/wait.ts': { times: 1, are: ['evalsha', 'eval', 'wait'] },
  // Hands on what it is given.
  'drivers/redis/reconnecting.ts': { times: 2, are: [] },
}

describe('commands as they are written', () => {
  const lua = ['redis/lua', 'brokers/redis-streams/lua', 'drivers/redis/lua'].flatMap((folder) =>
    filesOf(folder, '.lua'),
  )
  const typescript = [
    ...filesOf('redis', '.ts'),
    ...filesOf('brokers/redis-streams', '.ts'),
    // Other than those that are drivers of a client.
    ...filesOf('drivers/redis', '.ts').filter(([path]) =>
      /\/(checks|connection|node-redis|reconnecting|wait)\.ts$/.test(path),
    ),
  ]
  const all = [
    ...lua.map(([path, text]) => ({ path, text, commands: calledIn(text) })),
    ...typescript.map(([path, text]) => ({ path, text, commands: sentIn(text) })),
  ]

  test('every one is in the table of 6.0, with words that 6.0 knows', () => {
    expect(lua.length).toBeGreaterThan(25)
    expect(all.flatMap(({ commands }) => commands).length).toBeGreaterThan(150)
    for (const { path, text, commands } of all) {
      const { times, are } = ELSEWHERE[path] ?? { times: 0, are: [] }
      expect(commands.filter((words) => words.length === 0).length, `${path}: named elsewhere`).toBe(times)
      for (const name of are) {
        expect(text, path).toContain(`'${name}'`)
        expect(COMMANDS, path).toHaveProperty(name.toLowerCase())
      }
      const problems = commands.filter((words) => words.length > 0).map(problemOf)
      expect(
        problems.filter((problem) => problem !== undefined),
        path,
      ).toEqual([])
    }
    expect(all.map(({ path }) => path)).toEqual(expect.arrayContaining(Object.keys(ELSEWHERE)))
  })

  test('the outbox and due-time events read no JSON: not every server that speaks Redis has cjson', () => {
    const ours = lua.filter(([path]) => /\/(outbox|due)-/.test(path))
    expect(ours.length).toBeGreaterThan(15)
    for (const [path, text] of ours) expect(text, path).not.toMatch(/\bcjson\b/)
  })

  test('every one in the table is used', () => {
    const used = all.flatMap(({ path, commands }) => [
      ...commands.map(([name]) => name),
      ...(ELSEWHERE[path]?.are ?? []),
    ])
    const names = new Set(used.filter((name) => name !== undefined).map((name) => name.toLowerCase()))
    expect(Object.keys(COMMANDS).filter((name) => !names.has(name))).toEqual([])
  })

  test('what came later is found, however it is written', () => {
    expect(calledIn("redis.call('GETDEL', key)").map(problemOf)).toEqual([expect.stringMatching(/not in the table/)])
    expect(calledIn("redis.pcall('SET', key, f('x'), 'GET')").map(problemOf)).toEqual([expect.stringMatching(/^GET/)])
    expect(calledIn("redis.call('ZADD', key,\n 'GT', 1, m)").map(problemOf)).toEqual([expect.stringMatching(/^GT/)])
    expect(calledIn("-- redis.call('GETDEL')\nredis.call(name)")).toEqual([[]])
    const sent = sentIn("a.command(['xautoclaim', key])\nb.pipeline(keys.map((key) => ['expire', key, t, 'NX']))")
    expect(sent.map(problemOf)).toEqual([
      expect.stringMatching(/not in the table/),
      expect.stringMatching(/^(NX|more arguments)/),
    ])
    expect(sentIn('a.command(words)\na.pipeline(commands)')).toEqual([[], []])
    expect(problemOf(['XRANGE', 's', '(1-1', '+'])).toMatch(/came after/)
    expect(problemOf(['ZRANGEBYSCORE', 'z', '(1', '+inf'])).toBeUndefined()
  })
})

describeWith(['redis'], 'the table of 6.0, by what a later server tells of itself', () => {
  const told = async (name: string) =>
    documented((await reader(service('redis').url).call('command', 'docs', name)) as unknown[])

  test.each([...new Set([...Object.keys(COMMANDS), ...WRITE_COMMANDS])])('%s', async (name) => {
    const { since, later } = await told(name)
    expect(isLater(since), since).toBe(false)
    if (COMMANDS[name] !== undefined) expect(COMMANDS[name].later ?? []).toEqual(expect.arrayContaining(later))
  })

  test('it does tell', async () => {
    expect(isLater((await told('getdel')).since)).toBe(true)
    expect((await told('set')).later).toContain('PXAT')
  })
})
