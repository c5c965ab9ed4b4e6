import { expect, onTestFinished, test } from 'vitest'
import { isReady } from '../../scripts/services/ready.ts'
import { without } from '../support/services.ts'
import { ownCache, script } from './support.ts'

const services = (args: string[], env: Record<string, string>) => script('scripts/services/cli.ts', args, env).ended

const leftOut = without('postgres') || without('pgbouncer')

test.skipIf(leftOut)('up keeps servers until down, and finds those it started before', async () => {
  const env = { WAYBILL_CACHE: await ownCache() }
  onTestFinished(async () => {
    await services(['down'], env)
  })
  const first = await services(['up', 'postgres', '--json'], env)
  expect(first.code, first.all).toBe(0)
  const [postgres] = JSON.parse(first.out)
  expect(postgres).toMatchObject({ name: 'postgres', variable: 'WAYBILL_TEST_POSTGRES_URL', origin: 'npm' })
  expect(await isReady(postgres.url, 'postgres')).toBe(true)

  const second = await services(['up', 'postgres', 'pgbouncer'], env)
  expect(second.out).toContain(`export WAYBILL_TEST_POSTGRES_URL='${postgres.url}'\n`)
  expect(second.out).toMatch(/export WAYBILL_TEST_PGBOUNCER_URL='postgres:.*'\n/)

  const status = JSON.parse((await services(['status', '--json'], env)).out)
  expect(status).toMatchObject([
    { name: 'postgres', ready: true },
    { name: 'pgbouncer', ready: true },
  ])

  await services(['down'], env)
  expect(await isReady(postgres.url, 'postgres')).toBe(false)
  expect((await services(['status'], env)).out).toBe('nothing is running\n')
})

test.skipIf(without('postgres'))('when one server cannot be had, the others are kept and can be ended', async () => {
  const nowhere = 'nats://127.0.0.1:1'
  const env = { WAYBILL_CACHE: await ownCache(), WAYBILL_TEST_NATS_URL: nowhere }
  const up = await services(['up', 'postgres', 'nats'], env)
  expect([up.code, up.all]).toEqual([
    1,
    expect.stringContaining(`nats: nothing responds at WAYBILL_TEST_NATS_URL=${nowhere}`),
  ])
  const [postgres] = JSON.parse((await services(['status', '--json'], env)).out)
  expect(postgres).toMatchObject({ name: 'postgres', ready: true })
  await services(['down'], env)
  expect(await isReady(postgres.url, 'postgres')).toBe(false)
})

test('mistakes are answered with what would be right', async () => {
  const env = { WAYBILL_CACHE: await ownCache() }
  const [unknown, option, verb] = await Promise.all([
    services(['up', 'postgress'], env),
    services(['up', '--jsn'], env),
    services(['start'], env),
  ])
  expect(unknown.all).toContain("unknown service 'postgress'; did you mean 'postgres'?")
  expect(option.all).toContain("unknown option '--jsn'")
  expect(verb.all).toContain('up|down|status')
  expect([unknown.code, option.code, verb.code]).toEqual([1, 1, 1])
})
