/** Start, stop and restart of a server that is described by plain data; the same in the runner and in a test. */
import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { compose, endContainer } from './docker.ts'
import { endLaunch, living, spawnLaunch } from './process.ts'
import { isReady } from './ready.ts'
import type { Launch, Server, StopMode } from './types.ts'

const READY_WITHIN = 120_000
/** After SIGKILL the orphans of a server may hold its data or port for a moment, and the new process gives up. */
const TRY_AGAIN_FOR = 10_000

export async function start(server: Server): Promise<void> {
  if (server.control.kind === 'found') throw notOurs(server, 'start')
  if (server.control.kind === 'docker') {
    await compose(server.control, ['start', server.control.service])
    return await untilReady(server)
  }
  const launches = server.control.launches
  for (const launch of launches) if (!living(launch.pidFile)) await spawnLaunch(launch)
  const main = launches.at(-1)!
  const tryAgainUntil = Date.now() + TRY_AGAIN_FOR
  await untilReady(server, async () => {
    if (living(main.pidFile)) return
    if (Date.now() > tryAgainUntil) throw new Error(`${server.name} ended while it started\n${await tail(main)}`)
    await sleep(100)
    await spawnLaunch(main)
  })
}

/** Only the server itself: a helper such as epmd stays until the run ends. */
export async function stop(server: Server, mode: StopMode = 'fast'): Promise<void> {
  if (server.control.kind === 'found') throw notOurs(server, 'stop')
  if (server.control.kind === 'docker') {
    const { service } = server.control
    return await compose(server.control, mode === 'fast' ? ['stop', service] : ['kill', service])
  }
  await endLaunch(server.control.launches.at(-1)!, mode)
}

export async function stopAll(server: Server): Promise<void> {
  if (server.control.kind === 'found') return
  if (server.control.kind === 'docker') return await endContainer(server.control)
  for (const launch of server.control.launches.toReversed()) await endLaunch(launch, 'fast')
}

export function pid(server: Server): number | null {
  if (server.control.kind !== 'process') return null
  return living(server.control.launches.at(-1)!.pidFile)?.pid ?? null
}

async function untilReady(server: Server, meanwhile: () => Promise<void> = async () => {}): Promise<void> {
  for (const until = Date.now() + READY_WITHIN; Date.now() < until; await sleep(10)) {
    if (await isReady(server.url, server.protocol)) return
    await meanwhile()
  }
  const log = server.control.kind === 'process' ? await tail(server.control.launches.at(-1)!) : ''
  throw new Error(`${server.name} is not ready after ${READY_WITHIN / 1000} s\n${log}`)
}

async function tail(launch: Launch): Promise<string> {
  return (await readFile(launch.log, 'utf8').catch(() => '')).split('\n').slice(-20).join('\n')
}

function notOurs(server: Server, verb: string): Error {
  const instead = 'use privatePostgres() in a test that needs this'
  return new Error(`cannot ${verb} ${server.name} at ${server.url}: it was not started here (${instead})`)
}
