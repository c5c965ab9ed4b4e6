/** Servers in containers, where a Docker engine answers. One Compose project per run keeps runs apart. */
import { basename } from 'node:path'
import { command, onPath } from './files.ts'
import { freePort } from './ports.ts'
import type { Control, Entry, Server } from './types.ts'

type Container = Extract<Control, { kind: 'docker' }>

let answer: Promise<boolean> | undefined

export function engineAnswers(): Promise<boolean> {
  answer ??= (async () => {
    if (process.env['WAYBILL_TEST_DOCKER'] === '0' || !onPath('docker')) return false
    return await command('docker', ['compose', 'version']).then(
      () =>
        command('docker', ['info', '--format', '{{.ServerVersion}}']).then(
          (text) => text.trim() !== '',
          () => false,
        ),
      () => false,
    )
  })()
  return answer
}

export async function compose(control: Container, args: string[], env: Record<string, string> = {}): Promise<void> {
  await command('docker', ['compose', '-p', control.project, '-f', control.file, ...args], { env })
}

export async function container(entry: Entry, run: string): Promise<Server> {
  const { file, service, port: inside, url } = entry.compose!
  // One project per service, not per run: `up` of two services of one project at the same time would race.
  const control: Container = { kind: 'docker', project: `${basename(run)}-${entry.name}`, file, service }
  const port = await freePort()
  await compose(control, ['up', '-d', service], { WAYBILL_PORT: String(port), WAYBILL_INSIDE: String(inside) })
  return { name: entry.name, url: url(port), origin: 'docker', version: '', protocol: entry.protocol, control }
}
