import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, test } from 'vitest'
import { DONE, Flow } from '../../src/adapter.ts'
import { Message, type RawMessage } from '../../src/index.ts'
import { brokerSuite } from '../../src/testing/index.ts'
import { runSuite } from '../support/suite.ts'
import { eventually } from '../support/wait.ts'
import { DirectoryPublisher, DirectorySource } from './directory-broker.ts'

const NEVER = new AbortController().signal
const root = mkdtempSync(join(tmpdir(), 'waybill-directory-'))
afterAll(() => rmSync(root, { recursive: true }))

let made = 0
const fresh = () => join(root, String(++made))

const suite = brokerSuite({
  name: 'directory',
  features: { competing: true, ordered: true, deadLetters: true, refuses: true },
  async create() {
    const directory = fresh()
    const source = new DirectorySource({ directory })
    await (await source.open()).close()
    return {
      publisher: new DirectoryPublisher({ directory }),
      source: () => source,
      deadLetters: () => source.deadLetters(),
      // JSON cannot hold it.
      refused: () => new Message({ id: 'r', source: '/s', type: 't' }, { n: 1n }) as unknown as RawMessage,
      async close() {},
    }
  },
})

/** An adapter written by nothing but docs/guides/write-an-adapter.md, which shows it. */
describe('an adapter made of a directory', () => {
  runSuite(suite)

  test('what it does not declare is skipped, with the reason', () => {
    const skipped = suite.filter(({ skip }) => skip !== undefined)
    expect(skipped.length).toBeGreaterThan(0)
    for (const { skip } of skipped) expect(skip).toMatch(/directory does not declare: /)
  })

  test('a session that died is taken over, and its late settlement changes nothing', async () => {
    const directory = fresh()
    const source = new DirectorySource({ directory, lease: 1500 })
    const dead = await source.open()
    const publisher = new DirectoryPublisher({ directory })
    await publisher.publish([new Message({ id: '1', source: '/s', type: 't' }, '{}')])
    const held = await dead.take({ count: 1, bytes: 1e6 }, NEVER)
    const heir = await source.open()
    let taken: typeof held = []
    while (taken.length === 0) {
      taken = await heir.take({ count: 1, bytes: 1e6 }, NEVER)
      await heir.extend!([])
    }
    expect(await dead.settle([[held[0]!, DONE]])).toBe(1)
    expect(await heir.settle([[taken[0]!, DONE]])).toBe(0)
    await heir.close()
  })

  test('a flow over it retries what failed, though the source gives nothing back itself', async () => {
    const directory = fresh()
    const from = new DirectorySource({ directory })
    await (await from.open()).close()
    await new DirectoryPublisher({ directory }).publish([new Message({ id: '1', source: '/s', type: 't' }, '{}')])
    let tries = 0
    const each = () => {
      if (++tries < 3) throw new Error('not yet')
    }
    const flow = new Flow({ name: 'd', from, step: { each }, retry: { backoff: { min: 1, max: 1, jitter: 0 } } })
    await flow.start()
    await eventually('the third try', () => tries === 3)
    await flow.stop()
    expect(tries).toBe(3)
    expect(await from.deadLetters()).toEqual([])
  })

  test('the guide shows this very code', () => {
    const guide = readFileSync(new URL('../../docs/guides/write-an-adapter.md', import.meta.url), 'utf8')
    const code = readFileSync(new URL('./directory-broker.ts', import.meta.url), 'utf8')
    const asUser = (text: string) =>
      text
        .replaceAll("'../../src/index.ts'", "'waybill'")
        .replace(/'..\/..\/src\/(\w+)(\/index)?.ts'/g, "'waybill/$1'")
        .replace(/\s+/g, ' ')
    const shown = [...guide.matchAll(/```ts\n(.*?)```/gs)].map(([, text]) => text!.replace(/\s+/g, ' ').trim())
    const parts = shown.filter((text) => asUser(code).includes(text))
    expect(parts.join(' ').length, 'all of it, in parts').toBe(asUser(code).trim().length)
  })
})
