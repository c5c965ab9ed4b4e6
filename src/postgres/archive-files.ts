import { randomBytes } from 'node:crypto'
import { createReadStream } from 'node:fs'
import { mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { pipeline } from 'node:stream'
import { promisify } from 'node:util'
import { createGunzip, gzip } from 'node:zlib'
import { errorSummary, WaybillError } from '../core/index.ts'
import type { StoredRow } from './columns.ts'

const compress = promisify(gzip)
const SUFFIX = '.ndjson.gz'

/**
 * Events as compressed lines of JSON: `<directory>/<table>/<day of publishing>/<first sequence>-….ndjson.gz`. A file has
 * its name only once all of it is on the disk; one that was being written when the process died is ignored.
 */
export async function writeArchive(directory: string, table: string, rows: readonly StoredRow[]): Promise<string[]> {
  const days = new Map<string, StoredRow[]>()
  for (const row of rows) {
    const day = dayOf(row)
    const list = days.get(day)
    if (list === undefined) days.set(day, [row])
    else list.push(row)
  }
  const paths: string[] = []
  for (const [day, list] of days) {
    const folder = join(directory, table, day)
    await makeFolder(folder)
    const name = `${list[0]!.sequence.padStart(19, '0')}-${randomBytes(4).toString('hex')}${SUFFIX}`
    const path = join(folder, name)
    await writeWhole(path, await compress(list.map(lineOf).join('')))
    paths.push(path)
  }
  return paths
}

/** `-infinity` is a time for PostgreSQL. */
function dayOf({ published_at, created_at }: StoredRow): string {
  const at = new Date(published_at ?? created_at)
  return Number.isNaN(at.getTime()) ? 'undated' : at.toISOString().slice(0, 10)
}

async function writeWhole(path: string, bytes: Uint8Array): Promise<void> {
  const unfinished = `${path}.unfinished`
  const file = await open(unfinished, 'wx')
  try {
    try {
      await file.writeFile(bytes)
      await file.sync()
    } finally {
      await file.close()
    }
    await rename(unfinished, path)
  } catch (error) {
    // Each round would leave another behind, on a disk that is full already.
    await rm(unfinished, { force: true }).catch(() => {})
    throw error
  }
  await syncFolder(dirname(path))
}

/** A name is on the disk only when its folder is; so are the names of new folders in theirs. */
async function makeFolder(folder: string): Promise<void> {
  const first = await mkdir(folder, { recursive: true })
  if (first === undefined) return
  for (let at = dirname(folder); ; at = dirname(at)) {
    await syncFolder(at)
    if (at.length < first.length || at === dirname(at)) return
  }
}

async function syncFolder(folder: string): Promise<void> {
  if (process.platform === 'win32') return // a folder cannot be opened there
  const handle = await open(folder, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}

/** No attribute of an event can have a name with an underscore: so this stands nowhere else in a line before it. */
const DATA = ',"payload_json":'

/** The payload comes last and as it is: a parse and a serialisation would round large numbers. */
function lineOf(row: StoredRow): string {
  const { payload, payload_bytes, attributes, state: _, ...rest } = row
  const bytes = payload_bytes === null ? null : Buffer.from(payload_bytes, 'hex').toString('base64')
  const head = JSON.stringify({ ...rest, attributes: attributes === null ? null : JSON.parse(attributes), bytes })
  return payload === null ? `${head}\n` : `${head.slice(0, -1)}${DATA}${payload}}\n`
}

function rowOfLine(line: string): StoredRow {
  const at = line.indexOf(DATA)
  const head = JSON.parse(at < 0 ? line : `${line.slice(0, at)}}`)
  const { attributes, bytes, ...rest } = head
  return {
    ...rest,
    state: 'published',
    attributes: attributes === null ? null : JSON.stringify(attributes),
    payload: at < 0 ? null : line.slice(at + DATA.length, -1),
    payload_bytes: bytes === null ? null : Buffer.from(bytes, 'base64').toString('hex'),
  }
}

export interface ArchiveFilesOptions {
  /** Only of this outbox, where the folder is that of all archives. */
  readonly table?: string
  /** Only what was published on the day before or later. */
  readonly since?: Date | undefined
}

const DAY = 86_400_000

/** All that was archived below a folder, by day and number. A crash may have left an event there twice. */
export async function* readArchiveFiles(
  directory: string,
  options: ArchiveFilesOptions = {},
): AsyncGenerator<StoredRow> {
  const { table, since } = options
  const folder = table === undefined ? directory : join(directory, table)
  const first = since === undefined ? '' : new Date(since.getTime() - DAY).toISOString().slice(0, 10)
  const names = await readdir(folder, { recursive: true }).catch((error) => {
    // Nothing was archived yet.
    if (table !== undefined && error?.code === 'ENOENT') return []
    throw error
  })
  const files = names.map((name) => name.replaceAll('\\', '/')).filter((name) => name.endsWith(SUFFIX))
  for (const name of files.sort()) if (name >= first) yield* readFile(join(folder, name))
}

async function* readFile(path: string): AsyncGenerator<StoredRow> {
  const unzipped = pipeline(createReadStream(path), createGunzip(), () => {})
  try {
    for await (const line of createInterface({ input: unzipped, crlfDelay: Number.POSITIVE_INFINITY })) {
      yield rowOfLine(line)
    }
    if (unzipped.errored) throw unzipped.errored
  } catch (error) {
    throw new WaybillError('DAMAGED_ARCHIVE', `${path} cannot be read: ${errorSummary(error)}`, { cause: error })
  } finally {
    unzipped.destroy()
  }
}
