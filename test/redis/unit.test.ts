import { Redis as IoRedis } from 'ioredis'
import { createClient } from 'redis'
import { afterAll, beforeAll, describe, expect, expectTypeOf, test } from 'vitest'
import { classify, Unavailable } from '../../src/core/index.ts'
import { Relay } from '../../src/outbox/index.ts'
import { type RedisStore, type RedisTx, redis, redisDue, redisFromContext } from '../../src/redis/index.ts'
import type { Outbox } from '../../src/store/store.ts'
import { sample } from '../../src/testing/outbox-probe.ts'
import { listening } from '../support/listening.ts'
import { admin, replicated, standalone } from '../support/redis-topologies.ts'
import { describeWith, service } from '../support/services.ts'
import { freshTag, ioredis, keysOf, nodeRedis, reader, storeOf } from './support.ts'

for (const server of ['redis', 'redis6']) {
  describeWith([server], `units of work on ${server}`, () => {
    let url: string
    let db: RedisStore
    let look: IoRedis
    const fill = (fn: (tx: RedisTx) => void) => db.withTransaction(async (tx) => fn(tx))

    beforeAll(() => {
      url = service(server).url
      db = storeOf(ioredis(url))
      look = reader(url)
    })

    test('everything queued is written in one step, in its order, whatever the type of key', async () => {
      const key = (name: string) => db.key(`all:${name}`)
      await fill((tx) => {
        tx.set(key('text'), 'a')
        tx.append(key('text'), 'b')
        tx.incrby(key('count'), 41)
        tx.command('INCR', key('count'))
        tx.hset(key('hash'), 'n', 1, 'bytes', Buffer.from([0, 255, 10]))
        tx.rpush(key('list'), 'x', 'y')
        tx.sadd(key('set'), 'm')
        tx.zadd(key('zset'), 1.5, 'm')
        tx.xadd(key('stream'), '*', 'f', 'v')
        tx.zunionstore(key('union'), 1, key('zset'))
        tx.pexpire(key('text'), 60_000)
      })
      expect(await look.get(key('text'))).toBe('ab')
      expect(await look.get(key('count'))).toBe('42')
      expect(await look.hgetBuffer(key('hash'), 'bytes')).toEqual(Buffer.from([0, 255, 10]))
      expect(await look.lrange(key('list'), 0, -1)).toEqual(['x', 'y'])
      expect(await look.zscore(key('union'), 'm')).toBe('1.5')
      expect(await look.xlen(key('stream'))).toBe(1)
      expect(await look.pttl(key('text'))).toBeGreaterThan(50_000)
    })

    test('all of it is one command to the server, when the function has returned; nothing when it throws', async () => {
      const { client, said } = listening(ioredis(url))
      const heard = storeOf(client)
      await heard.withTransaction(async (tx) => tx.set(heard.key('first'), '1'))
      said.splice(0)
      const failing = heard.withTransaction(async (tx) => {
        tx.set(heard.key('one-step'), 'dropped')
        throw new Error('no')
      })
      await expect(failing).rejects.toThrow('no')
      expect(said).toEqual([])
      await heard.withTransaction(async (tx) => {
        tx.set(heard.key('one-step'), 'a')
        tx.append(heard.key('one-step'), 'b')
        tx.sadd(heard.key('one-step-set'), 'm')
        expect(await look.exists(heard.key('one-step'))).toBe(0)
        expect(said).toEqual([])
      })
      expect(said.map(([name]) => name)).toEqual(['commit'])
      expect([await look.get(heard.key('one-step')), await look.scard(heard.key('one-step-set'))]).toEqual(['ab', 1])
    })

    test('queued commands answer nothing, in the types too', async () => {
      expectTypeOf<RedisTx['incr']>().returns.toEqualTypeOf<void>()
      expectTypeOf<RedisTx['command']>().returns.toEqualTypeOf<void>()
      expectTypeOf<RedisTx>().not.toHaveProperty('get')
      await db.withTransaction(async (tx) => {
        expect(tx.incr(db.key('answer')) as unknown).toBeUndefined()
        expect(await look.get(db.key('answer'))).toBeNull()
      })
    })

    test('types are looked at before anything is written', async () => {
      await look.rpush(db.key('a-list'), 'x')
      const failing = fill((tx) => {
        tx.set(db.key('untouched'), '1')
        tx.hset(db.key('a-list'), 'f', 'v')
      })
      await expect(failing).rejects.toMatchObject({
        code: 'WRONG_KEY_TYPE',
        message: expect.stringMatching(/a hash is needed, and there is a list: nothing was written.*a-list" \[\w+\]$/),
      })
      expect(await look.exists(db.key('untouched'))).toBe(0)
    })

    test('a key that is removed or replaced first may hold anything', async () => {
      const [gone, replaced] = [db.key('gone'), db.key('replaced')]
      await look.rpush(gone, 'x')
      await look.rpush(replaced, 'x')
      await fill((tx) => {
        tx.del(gone)
        tx.hset(gone, 'f', 'v')
        tx.set(replaced, '1')
        tx.incr(replaced)
      })
      expect(await look.hget(gone, 'f')).toBe('v')
      expect(await look.get(replaced)).toBe('2')
    })

    test('commands that contradict each other are refused where they are queued', async () => {
      const failing = fill((tx) => {
        tx.set(db.key('both'), '1')
        tx.hset(db.key('both'), 'f', 'v')
      })
      await expect(failing).rejects.toMatchObject({
        code: 'WRONG_KEY_TYPE',
        message: expect.stringMatching(/a string/),
      })
    })

    test('a command that fails midway is named, with what was applied, and is permanent', async () => {
      await look.set(db.key('word'), 'no number')
      const error = await fill((tx) => {
        tx.incr(db.key('before'))
        tx.incr(db.key('word'))
        tx.incr(db.key('after'))
      }).catch((caught) => caught)
      expect(error).toMatchObject({
        code: 'PARTLY_APPLIED',
        message: expect.stringMatching(
          /^INCR, 2 of 3, failed after those before it were applied: ERR value is not .*word" \[PARTLY_APPLIED\]$/,
        ),
      })
      expect(error.message).not.toContain('no number')
      expect(classify(error)).toBe('permanent')
      expect(await look.mget(db.key('before'), db.key('after'))).toEqual(['1', null])
    })

    test('one that fails first has written nothing, and says so', async () => {
      await look.set(db.key('word'), 'no number')
      const error = await fill((tx) => tx.incr(db.key('word'))).catch((caught) => caught)
      expect(error).toMatchObject({ code: 'COMMAND_FAILED', message: expect.stringMatching(/nothing was written/) })
      expect(classify(error)).toBe('permanent')
    })

    test('keys of another slot are refused before anything is sent', async () => {
      const failing = fill((tx) => {
        tx.set(db.key('here'), '1')
        tx.set('elsewhere', '1')
      })
      await expect(failing).rejects.toMatchObject({
        code: 'CROSSSLOT',
        message: expect.stringMatching(/need the hash tag .* This one has not: "elsewhere"/),
      })
      await expect(fill((tx) => tx.rename(db.key('a'), 'b'))).rejects.toMatchObject({ code: 'CROSSSLOT' })
      await expect(fill((tx) => tx.zunionstore(db.key('a'), 1, 'b'))).rejects.toMatchObject({ code: 'CROSSSLOT' })
      expect(await look.exists(db.key('here'), 'elsewhere')).toBe(0)
      const anywhere = storeOf(ioredis(url), { anySlot: true })
      const key = freshTag('anywhere')
      await anywhere.withTransaction(async (tx) => tx.set(key, '1'))
      expect(await look.get(key)).toBe('1')
    })

    test.each([
      ['a command that only reads', (tx: RedisTx) => tx.command('GET' as never, 'k'), /"GET" cannot be queued/],
      ['one nobody knows', (tx: RedisTx) => tx.command('HSETT' as never, 'k'), /did you mean HSET\?/],
      ['one that waits', (tx: RedisTx) => tx.command('BLPOP' as never, 'k', 1), /cannot be queued/],
      ['one for the whole server', (tx: RedisTx) => tx.command('FLUSHALL' as never, 'k'), /cannot be queued/],
      ['a script', (tx: RedisTx) => tx.command('EVAL' as never, 'return 1', 0), /cannot be queued/],
      ['no name', (tx: RedisTx) => tx.command(undefined as never, 'k'), /undefined cannot be queued/],
      ['too few words', (tx: RedisTx) => tx.hset(db.key('k'), 'f'), /HSET has 2 words; it takes 3 to 7000/],
      ['too many words', (tx: RedisTx) => tx.incr(db.key('k'), 1), /INCR has 2 words; it takes 1/],
      ['what is no word', (tx: RedisTx) => tx.set(db.key('k'), { secret: 'no' } as never), /word 2 is an object/],
      ['no number', (tx: RedisTx) => tx.incrby(db.key('k'), Number.NaN), /word 2 is NaN/],
      ['no key', (tx: RedisTx) => tx.set('', 'v'), /word 1 must be a key/],
      [
        'more words than Lua can hold',
        (tx: RedisTx) => tx.sadd(db.key('k'), ...Array(9000).fill('x')),
        /has 9001 words/,
      ],
    ])('%s is refused where it is queued', async (_, queue, says) => {
      const error = await fill(queue).catch((caught) => caught)
      expect(error).toMatchObject({ code: 'COMMAND_REFUSED', message: expect.stringMatching(says) })
      expect(classify(error)).toBe('permanent')
      expect(await look.exists(db.key('k'))).toBe(0)
    })

    test('a large unit is written whole', async () => {
      await fill((tx) => {
        for (let i = 0; i < 20_000; i++) tx.hset(db.key('large'), String(i), i)
        tx.sadd(db.key('large-set'), ...Array.from({ length: 6900 }, (_, i) => i))
      })
      expect(await look.hlen(db.key('large'))).toBe(20_000)
      expect(await look.scard(db.key('large-set'))).toBe(6900)
    })

    test('nothing queued is nothing sent', async () => {
      const away = redis({ client: ioredis('redis://127.0.0.1:1'), tag: 'away' })
      expect(await away.withTransaction(async () => 'value')).toBe('value')
      const failing = away.withTransaction(async (tx) => tx.set(away.key('k'), '1'))
      await expect(failing).rejects.toSatisfy((error) => classify(error) === 'down')
      await away.stop()
    })

    test('a prefix of the client stands before every key, as it does elsewhere', async () => {
      const prefix = freshTag('prefix')
      const client = new IoRedis(url, { lazyConnect: true, keyPrefix: `${prefix}:` })
      const prefixed = storeOf(client)
      await prefixed.withTransaction(async (tx) => {
        tx.mset(prefixed.key('a'), '1', prefixed.key('b'), '2')
        await prefixed.inbox.receive(tx, { subscriber: 's', source: '/s', id: '1' })
      })
      expect(await look.get(`${prefix}:${prefixed.key('b')}`)).toBe('2')
      expect(await look.get(`${prefix}:${prefixed.key('inbox:["s","/s","1"]')}`)).toBe('done')
      expect(await keysOf(look, prefixed.tag)).toEqual([])
      await redisFromContext(client).set(prefixed.key('c'), '3')
      expect(await look.get(`${prefix}:${prefixed.key('c')}`)).toBe('3')
      client.disconnect()
    })
  })
}

describeWith(['redis'], 'adapters', () => {
  const url = () => service('redis').url
  const clients: { disconnect?(): void; destroy?(): void }[] = []
  afterAll(() => {
    for (const client of clients) (client.disconnect ?? client.destroy)!.call(client)
  })

  const connected = {
    ioredis: async () => ioredis(url()),
    'node-redis': async () => await createClient({ url: url() }).connect(),
  }
  for (const [driver, connect] of Object.entries(connected)) {
    test(`${driver}: queue within a unit of work, and write at once outside of one`, async () => {
      const client = await connect()
      clients.push(client)
      const db = storeOf(client)
      const key = db.key('orders')
      const save = async (id: string) => {
        await redisFromContext(client).hset(key, id, 1)
      }
      const look = reader(url())
      await save('outside')
      expect(await look.hkeys(key)).toEqual(['outside'])
      let late!: () => Promise<void>
      await db.withTransaction(async () => {
        await save('inside')
        expect(await look.hkeys(key)).toEqual(['outside'])
        late = async () => save('late')
      })
      expect(await look.hkeys(key)).toEqual(['outside', 'inside'])
      await late()
      const failing = db.withTransaction(async () => {
        await save('dropped')
        throw new Error('no')
      })
      await expect(failing).rejects.toThrow('no')
      expect(await look.hkeys(key)).toEqual(['outside', 'inside', 'late'])
      await expect(redisFromContext(client).incr(key)).rejects.toThrow(/WRONGTYPE/)
    })
  }

  test('node-redis: its prefix stands before every key, outside of a unit of work too', async () => {
    const prefix = `${freshTag()}:`
    const client = await createClient({ url: url(), keyPrefix: prefix } as object).connect()
    clients.push(client)
    const db = storeOf(client)
    const [one, two] = [db.key('one'), db.key('two')]
    await redisFromContext(client).mset(one, '1', two, '2')
    await db.withTransaction(async () => redisFromContext(client).append(one, '!'))
    const look = reader(url())
    expect(await look.mget(`${prefix}${one}`, `${prefix}${two}`)).toEqual(['1!', '2'])
    expect(await look.exists(one, two)).toBe(0)
  })

  test('a client of another server, or another database, is not taken for that of the unit of work', async () => {
    const [here, elsewhere] = [ioredis(url()), ioredis(`${url()}/5`)]
    clients.push(here, elsewhere)
    const [db, other] = [storeOf(here), storeOf(elsewhere)]
    const key = db.key('k')
    await db.withTransaction(async () => {
      await redisFromContext(elsewhere).set(key, 'there')
      await other.withTransaction(async () => {
        // The unit around that of the other server.
        await redisFromContext(here).set(key, 'here')
        await redisFromContext(elsewhere).append(other.key('k'), 'x')
      })
      expect(await reader(url()).exists(key)).toBe(0)
    })
    const found = new IoRedis(`${url()}/5`)
    clients.push(found)
    expect([await reader(url()).get(key), await found.get(key), await found.get(other.key('k'))]).toEqual([
      'here',
      'there',
      'x',
    ])
    await found.del(key, other.key('k'))
    const prefixed = new IoRedis(url(), { lazyConnect: true, keyPrefix: 'p:' })
    clients.push(prefixed)
    const wrong = db.withTransaction(async () => redisFromContext(prefixed).set(key, '1'))
    await expect(wrong).rejects.toThrow(/keyPrefix/)
  })

  test('an outbox on another server refuses a unit of work: no relay would read there', async () => {
    const [here, elsewhere] = [ioredis(url()), ioredis(`${url()}/5`)]
    clients.push(here, elsewhere)
    const tag = freshTag()
    const db = storeOf(here, { tag })
    const stored = storeOf(elsewhere, { tag, outbox: { kind: 'stored' } })
    const streamed = storeOf(elsewhere, { tag })
    for (const outbox of [stored.outbox, streamed.outbox] as Outbox<RedisTx>[]) {
      const crossed = db.withTransaction(async (tx) => void (await outbox.enqueue(tx, [sample(1)])))
      await expect(crossed).rejects.toMatchObject({
        code: 'NOT_A_TRANSACTION',
        message: expect.stringMatching(/another|on the same server/),
      })
    }
    const due = db.withTransaction((tx) => redisDue({ outbox: stored.outbox }).record(tx, { id: 'i', at: new Date() }))
    await expect(due).rejects.toMatchObject({ code: 'NOT_A_TRANSACTION' })
    expect(await keysOf(reader(url()), tag)).toEqual([])
    // The same server under the same settings, by another client.
    const same = storeOf(ioredis(url()), { tag, outbox: { kind: 'stored' } })
    await db.withTransaction(async (tx) => void (await same.outbox.enqueue(tx, sample(1))))
    expect((await same.outbox.admin.stats()).states.ready.count).toBe(1)
  })

  test('what outlives its unit writes at once, not into a unit that is over', async () => {
    const client = ioredis(url())
    clients.push(client)
    const db = storeOf(client)
    let go!: () => void
    const gone = new Promise<void>((resolve) => {
      go = resolve
    })
    let late: Promise<unknown> | undefined
    await db.withTransaction(async () => {
      late = gone.then(() => redisFromContext(client).set(db.key('late'), '1'))
    })
    go()
    await late
    expect(await reader(url()).get(db.key('late'))).toBe('1')
  })

  test('what is no client is refused', () => {
    expect(() => redisFromContext({})).toThrow(/is no client/)
  })
})

describe('options', () => {
  test.each([
    [{}, /give the client by its name/],
    [undefined, /give the client by its name/],
    [{ client: {}, tag: 't' }, /no Redis client that is known here/],
    [{ client: ioredis('redis://127.0.0.1:1') }, /tag: undefined is not allowed/],
    [{ client: ioredis('redis://127.0.0.1:1'), tag: '{a}' }, /without braces/],
    [{ client: ioredis('redis://127.0.0.1:1'), tag: 't', inboxes: {} }, /did you mean "inbox"/],
    [{ client: ioredis('redis://127.0.0.1:1'), tag: 't', inbox: { retension: 1 } }, /did you mean "retention"/],
    [{ client: ioredis('redis://127.0.0.1:1'), tag: 't', inbox: { lease: 5 } }, /lease: 5 is not allowed/],
    [{ client: ioredis('redis://127.0.0.1:1'), tag: 't', outbox: { stream: '' } }, /stream: "" is not a name/],
    [{ client: nodeRedis('redis://127.0.0.1:1'), tag: 't', timeout: 'soon' }, /timeout/],
  ])('%# are checked', (options, says) => {
    expect(() => redis(options as never)).toThrow(says)
  })

  test('a relay that is given an outbox in a stream says how that is read', () => {
    const from = redis({ client: ioredis('redis://127.0.0.1:1'), tag: 't' }).outbox
    expect(() => new Relay({ from: from as never, to: () => {} })).toThrow(
      'this outbox is a stream: give streams.source(db.outbox.forwarding), or keep events',
    )
  })
})

describeWith(['redis', 'redis6'], 'a server in trouble', () => {
  for (const version of ['redis', 'redis6'] as const) {
    test(`${version}: out of memory nothing is written, nobody is blamed, and it goes on afterwards`, async () => {
      const node = await standalone({ 'maxmemory-policy': 'noeviction' }, version)
      const db = storeOf(ioredis(node.url))
      const look = admin(node)
      await look.set(db.key('old'), '1')
      const work = () =>
        db.withTransaction(async (tx) => {
          await db.inbox.receive(tx, { subscriber: 's', source: '/s', id: '1' })
          await look.config('SET', 'maxmemory', '1')
          // Without a look first the removal would be done, and what needs memory refused.
          tx.del(db.key('old'))
          tx.set(db.key('new'), 'x')
        })
      const error = await work().catch((caught) => caught)
      expect(error).toBeInstanceOf(Unavailable)
      expect(error.message).toMatch(/OOM/)
      expect(await look.get(db.key('old'))).toBe('1')
      await look.config('SET', 'maxmemory', '0')
      await db.withTransaction(async (tx) => {
        expect(await db.inbox.receive(tx, { subscriber: 's', source: '/s', id: '1' })).toBe('new')
      })
    })

    test(`${version}: a commit that too few replicas have is unknown, and found done when it comes again`, async () => {
      const { master } = await replicated({ version })
      const commit = (replicas: number, within: number) => {
        const db = storeOf(ioredis(master.url), { durability: { replicas, within } })
        const key = { subscriber: 's', source: '/s', id: '1' }
        const handle = () =>
          db.withTransaction(async (tx) => {
            if ((await db.inbox.receive(tx, key)) === 'new') tx.incr(db.key('count'))
          })
        return { handle, count: () => admin(master).get(db.key('count')) }
      }
      const copied = commit(1, 30_000)
      await copied.handle()
      expect(await copied.count()).toBe('1')
      const lacking = commit(2, 300)
      const error = await lacking.handle().catch((caught) => caught)
      expect(error).toMatchObject({
        code: 'COMMIT_UNKNOWN',
        cause: { message: expect.stringMatching(/1 of 2 replicas/) },
      })
      expect(classify(error)).toBe('down')
      expect(await lacking.count()).toBe('1')
      await lacking.handle().catch(() => {})
      expect(await lacking.count()).toBe('1')
    })

    test(`${version}: a replica refuses, and nobody is blamed`, async () => {
      const node = await standalone({}, version)
      const db = storeOf(ioredis(node.url))
      await admin(node).call('replicaof', '127.0.0.1', '1')
      const failing = db.withTransaction(async (tx) => tx.set(db.key('k'), '1'))
      await expect(failing).rejects.toSatisfy((error) => error instanceof Unavailable && /READONLY/.test(error.message))
      await admin(node).call('replicaof', 'no', 'one')
      await db.withTransaction(async (tx) => tx.set(db.key('k'), '1'))
      expect(await admin(node).get(db.key('k'))).toBe('1')
    })
  }
})
