/** The order in which a server is looked for, and what the machine's own apt sources say. */
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { codename, distributionSources, lineOf } from '../../scripts/services/apt-sources.ts'
import { home, ownCache, script, temporaryDir } from './support.ts'

const withDocker = {
  PATH: `${join(home, 'test/services/sample/bin')}:${process.env['PATH']}`,
  WAYBILL_TEST_DOCKER: '1',
}
const services = (args: string[], env: Record<string, string>) => script('scripts/services/cli.ts', args, env).ended

test('a Docker engine that answers is used, in a project of its own, and taken down', async () => {
  const file = join(await temporaryDir(), 'calls')
  const env = { ...withDocker, WAYBILL_CACHE: await ownCache(), WAYBILL_SAMPLE_FILE: file }
  const up = await services(['up', 'nats', '--json'], env)
  expect(up.code, up.all).toBe(0)
  expect(JSON.parse(up.out)).toMatchObject([{ name: 'nats', origin: 'docker' }])
  await services(['down'], env)
  expect(await readFile(file, 'utf8')).toBe('RUN-nats up -d nats\nRUN-nats start nats\nRUN-nats down -v -t 5\n')
})

test('a URL in the environment comes before everything else', async () => {
  const server = createServer((socket) => socket.end('INFO {}\r\n'))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const url = `nats://127.0.0.1:${(server.address() as { port: number }).port}`
  const file = join(await temporaryDir(), 'calls')
  const env = { ...withDocker, WAYBILL_CACHE: await ownCache(), WAYBILL_SAMPLE_FILE: file, WAYBILL_TEST_NATS_URL: url }
  const up = await services(['up', 'nats', '--json'], env)
  expect(JSON.parse(up.out)).toMatchObject([{ name: 'nats', origin: 'environment', url }])
  // Not ours, so not ours to end.
  expect((await services(['down'], env)).code).toBe(0)
  expect(server.listening).toBe(true)
  await expect(readFile(file)).rejects.toThrow(/ENOENT/)
  server.close()
})

test.skipIf(!(await codename()))(
  'apt sources are read in both forms; repositories of others are left alone',
  async () => {
    const name = await codename()
    const folder = await temporaryDir()
    await mkdir(join(folder, 'sources.list.d'))
    await writeFile(
      join(folder, 'sources.list'),
      `# deb http://old.example/debian ${name} main\ndeb [arch=amd64 signed-by=/k.gpg] http://a.example/debian ${name} main contrib\n`,
    )
    await writeFile(
      join(folder, 'sources.list.d/debian.sources'),
      `Types: deb deb-src\n# a comment\nURIs: http://b.example/security\nSuites: ${name}-security\nComponents: main\n\n` +
        'Types: deb\nURIs: https://other.example/node\nSuites: nodistro\nComponents: main\n\n' +
        `Enabled: no\nTypes: deb\nURIs: http://off.example/debian\nSuites: ${name}\nComponents: main\n`,
    )
    expect((await distributionSources(folder)).map(lineOf)).toEqual([
      `deb [signed-by=/k.gpg] http://a.example/debian ${name} main contrib`,
      `deb http://b.example/security ${name}-security main`,
    ])
  },
)
