import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { needed } from '../../scripts/services/needed.ts'
import { parse, vitestArguments } from '../../scripts/testing/arguments.ts'
import { home, temporaryDir } from './support.ts'

const toVitest = async (argv: string[], folder = home) =>
  (await vitestArguments(parse(argv), folder))?.filter((word) => !word.startsWith('--reporter'))

test('by default all needed servers and all tests of the first tier', async () => {
  expect(parse([])).toEqual({ tier: 'test', rest: false, passed: [], services: needed, without: [] })
  expect(await toVitest([])).toEqual([])
})

test('what stands in front of a server goes with it', () => {
  const { services, without } = parse(['--without', 'postgres'])
  expect(services).not.toContain('pgbouncer')
  expect(without).toEqual(['postgres', 'pgbouncer'])
})

test('only what is asked for, with what it stands in front of', () => {
  expect(parse(['--with', 'rabbitmq', 'test/brokers/rabbitmq'])).toMatchObject({
    services: ['rabbitmq'],
    passed: ['test/brokers/rabbitmq'],
  })
  const { services, without } = parse(['--with=pgbouncer'])
  expect(services.toSorted()).toEqual(['pgbouncer', 'postgres'])
  expect(without).toContain('redis')
  expect(() => parse(['--with', 'radis'])).toThrow("unknown service 'radis'; did you mean 'redis'?")
})

test('unknown words go to vitest as they are', async () => {
  expect(await toVitest(['--tier=full', 'test/core', '-t', 'acks', '--bail', '1'])).toEqual([
    'test/core',
    '-t',
    'acks',
    '--bail',
    '1',
  ])
})

test('the first word of a torture is a test name', async () => {
  expect(await toVitest(['--tier', 'torture', 'outbox relay', 'test/outbox'])).toEqual([
    '-t',
    'outbox relay',
    'test/outbox',
  ])
  expect(await toVitest(['--tier', 'torture'])).toEqual([])
})

test('mistakes are answered before anything starts', () => {
  expect(() => parse(['--tier', 'ful'])).toThrow("unknown tier 'ful'; known: test, full, torture")
  expect(() => parse(['--without', 'radis'])).toThrow("unknown service 'radis'; did you mean 'redis'?")
  expect(() => parse(['--without', 'mysterious'])).toThrow(/unknown service 'mysterious'; known: postgres, /)
  expect(() => parse(['--rest'])).toThrow(/use it with --tier full/)
})

describe('--rest', () => {
  const rest = ['--tier', 'full', '--rest']

  test('runs the long files and those that do more in tier full', async () => {
    const folder = await temporaryDir()
    await mkdir(join(folder, 'test/core'), { recursive: true })
    await writeFile(join(folder, 'test/core/long.full.test.ts'), '')
    await writeFile(join(folder, 'test/core/grows.test.ts'), "import { scale } from '../support/scale.ts'")
    await writeFile(join(folder, 'test/core/quick.test.ts'), '')
    expect(await toVitest(rest, folder)).toEqual(['test/core/grows.test.ts', 'test/core/long.full.test.ts'])
    expect(await toVitest([...rest, 'long', '--bail=1'], folder)).toEqual(['--bail=1', 'test/core/long.full.test.ts'])
  })

  test('has nothing to run where the tier adds nothing', async () => {
    const folder = await temporaryDir()
    await mkdir(join(folder, 'test'))
    expect(await toVitest(rest, folder)).toBeUndefined()
  })
})
