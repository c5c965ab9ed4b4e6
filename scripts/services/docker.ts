/**
 * Servers in containers, where a Docker engine responds. Every container is a Compose project of its own, named after
 * its run: runs stay apart, and the parts of one run can be started at the same time.
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { command, onPath } from './files.ts'
import { freePort } from './ports.ts'
import type { Control, Entry, Server } from './types.ts'

type Container = Extract<Control, { kind: 'docker' }>

const file = fileURLToPath(new URL('./compose.yml', import.meta.url))

let answer: Promise<boolean> | undefined

/** Asked once. A docker command without an engine or without Compose is as good as none. */
export function engineAnswers(): Promise<boolean> {
  answer ??= (async () => {
    if (process.env['WAYBILL_TEST_DOCKER'] === '0' || !onPath('docker')) return false
    try {
      await command('docker', ['compose', 'version'])
      return (await command('docker', ['info', '--format', '{{.ServerVersion}}'])).trim() !== ''
    } catch {
      return false
    }
  })()
  return answer
}

/** The port goes with every command: Compose reads the whole file each time. */
export async function compose(control: Container, args: string[]): Promise<void> {
  const env = { WAYBILL_PORT: String(control.port) }
  await command('docker', ['compose', '-p', control.project, '-f', file, ...args], { env })
}

export async function container(entry: Entry, run: string): Promise<Server> {
  const { name, protocol } = entry
  const port = await freePort()
  const record = join(run, 'containers', name)
  const control: Container = { kind: 'docker', project: `${basename(run)}-${name}`, service: name, port, record }
  // Recorded before it exists: who sweeps up after a crash must find it.
  await mkdir(dirname(record), { recursive: true })
  await writeFile(record, JSON.stringify(control))
  await compose(control, ['up', '-d', name])
  return { name, url: entry.url(port), origin: 'docker', version: '', protocol, control }
}

/** For good, with what it stored. */
export async function endContainer(control: Container): Promise<void> {
  await compose(control, ['down', '-v', '-t', '5'])
  await rm(control.record, { force: true })
}

/** Ends the containers of a run that are still recorded, and returns their names. */
export async function endContainers(run: string): Promise<string[]> {
  const folder = join(run, 'containers')
  const names = await readdir(folder).catch(() => [])
  for (const name of names) await endContainer(JSON.parse(await readFile(join(folder, name), 'utf8')) as Container)
  return names
}
