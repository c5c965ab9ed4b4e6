import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { read, root } from '../readme/support.ts'

interface Service {
  image: string
  command?: string
  build?: { context: string; dockerfile_inline: string }
  environment?: Record<string, string>
  depends_on?: Record<string, { condition: string }>
  ports?: string[]
  stop_grace_period?: string
  [key: string]: unknown
}

const folder = 'examples/order-service'
const text = read(`${folder}/docker-compose.yml`)
const { services, ...rest } = parse(text, { merge: true, strict: true }) as { services: Record<string, Service> }
const start = read(`${folder}/start.ts`)
const main = read(`${folder}/main.ts`)
const sources = readdirSync(join(root, folder)).flatMap((name) =>
  name.endsWith('.ts') ? read(`${folder}/${name}`) : [],
)

const roles = [...(/const ROLES = \[(.*)\]/.exec(start)?.[1] ?? '').matchAll(/'(\w+)'/g)].map(([, role]) => role!)
const own = Object.entries(services).filter(([, { build }]) => build !== undefined)

/** What the file uses of the Compose specification; a misspelt key is refused by `docker compose`, which is not here. */
const KEYS = [
  'build',
  'command',
  'depends_on',
  'environment',
  'healthcheck',
  'hostname',
  'image',
  'ports',
  'restart',
  'stop_grace_period',
]
const CONDITIONS: Record<string, (service: Service) => boolean> = {
  service_healthy: ({ healthcheck }) => healthcheck !== undefined,
  service_completed_successfully: ({ restart }) => restart === undefined,
}

describe('examples/order-service/docker-compose.yml', () => {
  test('starts the processes that start.ts starts, after migrate', () => {
    expect(rest).toEqual({})
    expect(roles).toHaveLength(4)
    expect(own.map(([name]) => name).sort()).toEqual(['migrate', ...roles].sort())
    for (const [name, { command, depends_on = {} }] of own) {
      expect(command).toBe(name)
      if (name !== 'migrate') expect(Object.keys(depends_on), name).toEqual(['migrate'])
    }
    expect(Object.keys(services.migrate!.depends_on!)).toEqual(['postgres', 'rabbitmq'])
  })

  test('uses known keys, and waits only for what will be so', () => {
    for (const [name, service] of Object.entries(services)) {
      expect(KEYS, name).toEqual(expect.arrayContaining(Object.keys(service)))
      for (const [other, { condition }] of Object.entries(service.depends_on ?? {})) {
        expect(services[other] && CONDITIONS[condition]?.(services[other]!), `${name} waits for ${other}`).toBe(true)
      }
    }
  })

  test('gives only variables that the code reads, and addresses of services that are there', () => {
    const known = new Set(
      sources.flatMap((source) => [...source.matchAll(/process\.env\['(\w+)'\]/g)].map(([, name]) => name!)),
    )
    for (const [name, { environment = {} }] of own) {
      expect([...known], name).toEqual(expect.arrayContaining(Object.keys(environment)))
      expect(Object.keys(environment), name).toEqual(expect.arrayContaining(['DATABASE_URL', 'RABBITMQ_URL']))
      for (const [key, value] of Object.entries(environment)) {
        if (key.endsWith('_URL')) expect(Object.keys(services), key).toContain(new URL(value).hostname)
      }
      // As start.ts does it: one process is of the release before.
      expect(environment['RELEASE'], name).toBe(name === 'api' ? 'old' : undefined)
    }
    expect(start).toContain("role === 'api' ? { RELEASE: 'old' }")
  })

  test('publishes the port on which the API listens, at the place where start.ts has it', () => {
    const [, port] = /process\.env\['PORT'\] \?\? (\d+)/.exec(main)!
    const [, first] = /process\.env\['PORTS'\] \?\? '(\d+)/.exec(start)!
    expect(services['api']!.ports).toEqual([`127.0.0.1:${first}:${port}`])
    for (const [name, { ports }] of Object.entries(services)) if (name !== 'api') expect(ports, name).toBeUndefined()
  })

  test('builds from files that are there, all that the build and the example need', () => {
    const { context, dockerfile_inline: lines } = services['migrate']!.build!
    const base = join(root, folder, context)
    const copied = [...lines.matchAll(/^COPY (.+) (\S+)$/gm)].flatMap(([, from]) => from!.split(' '))
    for (const name of copied) expect(existsSync(join(base, name)), name).toBe(true)
    expect(copied).toEqual(
      expect.arrayContaining([
        'package.json',
        'package-lock.json',
        'tsconfig.json',
        'tsconfig.build.json',
        'src',
        'examples',
      ]),
    )
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> }
    for (const [, script] of scripts['build']!.matchAll(/tsx (\S+?)\//g)) expect(copied).toContain(script)
    const [, entry] = /^ENTRYPOINT (.+)$/m.exec(lines)!
    expect(existsSync(join(base, (JSON.parse(entry!) as string[]).at(-1)!))).toBe(true)
  })

  test('uses images with a version, the same as the servers of the tests, and a Node that we support', () => {
    const tested = readFileSync(join(root, 'scripts/services/compose.yml'), 'utf8')
    for (const name of ['postgres', 'rabbitmq']) expect(tested).toContain(`image: ${services[name]!.image}\n`)
    const [, node] = /^FROM node:(\d+)-slim$/m.exec(services['migrate']!.build!.dockerfile_inline)!
    expect(Number(node)).toBeGreaterThanOrEqual(20)
  })

  test('lets a process finish what is in flight before it is killed', () => {
    for (const [name, { stop_grace_period: grace = '' }] of own) {
      if (name !== 'migrate') expect(Number.parseInt(grace, 10), name).toBeGreaterThan(10)
    }
  })
})
