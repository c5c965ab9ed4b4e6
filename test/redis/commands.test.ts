import { expect, test } from 'vitest'
import { WRITE_COMMANDS, WRITES } from '../../src/redis/commands.ts'
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
