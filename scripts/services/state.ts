/**
 * The servers that `npm run services -- up` left running, remembered in the cache folder, each clone for itself: `down` in
 * one must not end what another uses.
 */
import { createHash } from 'node:crypto'
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { cacheDir } from './cache.ts'
import type { Handover } from './types.ts'

const clone = fileURLToPath(new URL('../..', import.meta.url))

export function stateFile(of = clone): string {
  return join(cacheDir(), `services-${createHash('sha256').update(of).digest('hex').slice(0, 12)}.json`)
}

export async function readState(): Promise<Handover | null> {
  const text = await readFile(stateFile(), 'utf8').catch(() => '')
  return text ? (JSON.parse(text) as Handover) : null
}

/** By rename, so that a reader never sees half of it. */
export async function writeState(state: Handover): Promise<void> {
  const file = stateFile()
  await mkdir(dirname(file), { recursive: true })
  await writeFile(`${file}.new`, JSON.stringify(state, null, 2))
  await rename(`${file}.new`, file)
}

export async function clearState(state: Handover): Promise<void> {
  await rm(stateFile(), { force: true })
  await rm(state.run, { recursive: true, force: true })
}

/** What a test process may use: the servers of its run, or, under a bare vitest, those that people started. */
export async function currentHandover(): Promise<Handover | null> {
  const given = process.env['WAYBILL_SERVICES']
  return given ? (JSON.parse(given) as Handover) : await readState()
}
