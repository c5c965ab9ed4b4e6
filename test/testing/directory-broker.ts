import { randomUUID } from 'node:crypto'
import { mkdir, open, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import {
  type Delivery,
  type Demand,
  errorSummary,
  OK,
  type Outcome,
  outcomeOf,
  type Session,
  type Settled,
  systemClock,
} from '../../src/adapter.ts'
import { fromStructured, toStructured } from '../../src/cloudevents/index.ts'
import type { Publisher, RawMessage, Source } from '../../src/index.ts'

/** The folder of a message is its state: `waiting`, `taken/SESSION`, `dead`. A rename is atomic, so only one session wins. */
export interface DirectoryOptions {
  directory: string
  /** After so many milliseconds without a sign of life a session counts as dead. Default 30 s. */
  lease?: number
}

let count = 0

export class DirectoryPublisher implements Publisher {
  readonly name = 'directory'
  readonly features = {}
  readonly #waiting: string

  constructor({ directory }: DirectoryOptions) {
    this.#waiting = join(directory, 'waiting')
  }

  publish(messages: readonly RawMessage[]): Promise<readonly Outcome[]> {
    // Names first: they define the order, whichever file is written first.
    const named = messages.map((message) => [nextName(), message] as const)
    return Promise.all(named.map(([name, message]) => this.#one(name, message)))
  }

  async #one(name: string, message: RawMessage): Promise<Outcome> {
    let text: string
    try {
      text = toStructured(message)
    } catch (error) {
      // Its own fault: `rejected`, so that it does not hold up the rest.
      return outcomeOf(error)
    }
    try {
      const path = join(this.#waiting, name)
      const file = await open(`${path}.tmp`, 'w')
      await file.writeFile(text)
      // `ok` says: the destination will not forget it.
      await file.sync()
      await file.close()
      await rename(`${path}.tmp`, path)
      return OK
    } catch (error) {
      // A full or missing disk is nobody's fault.
      return { kind: 'down', error }
    }
  }
}

interface FileDelivery extends Delivery {
  readonly file: string
}

export class DirectorySource implements Source<FileDelivery> {
  readonly name = 'directory'
  /** It gives nothing back after a delay of its own: the flow keeps a message that failed, and tries it again. */
  readonly features = {}
  readonly #directory: string
  readonly #lease: number

  constructor({ directory, lease = 30_000 }: DirectoryOptions) {
    this.#directory = directory
    this.#lease = lease
  }

  async open(): Promise<Session<FileDelivery>> {
    for (const name of ['waiting', 'taken', 'dead']) await mkdir(join(this.#directory, name), { recursive: true })
    const session = new DirectorySession(this.#directory, this.#lease)
    await mkdir(session.own)
    return session
  }

  async deadLetters(): Promise<{ message: RawMessage; reason: string }[]> {
    const files = (await readdir(join(this.#directory, 'dead'))).filter((name) => name.endsWith('.json')).sort()
    return await Promise.all(
      files.map(async (name) => {
        const path = join(this.#directory, 'dead', name)
        return { message: fromStructured(await readFile(path)), reason: await readFile(`${path}.reason`, 'utf8') }
      }),
    )
  }
}

class DirectorySession implements Session<FileDelivery> {
  readonly own: string
  readonly extendEvery: number
  readonly #directory: string
  readonly #lease: number
  readonly #lost = new AbortController()
  #deadline: number
  #turn: Promise<unknown> = Promise.resolve()
  #closed = false

  constructor(directory: string, lease: number) {
    this.#directory = directory
    this.#lease = lease
    this.own = join(directory, 'taken', randomUUID())
    this.extendEvery = lease / 3
    this.#deadline = systemClock.monotonic() + lease / 2
  }

  get lost(): AbortSignal {
    return this.#lost.signal
  }

  /** Others may have taken over while this process was suspended. */
  live(): boolean {
    if (systemClock.monotonic() < this.#deadline) return true
    this.#lost.abort(new Error('it has not said in time that it lives'))
    return false
  }

  take(demand: Demand, signal: AbortSignal): Promise<FileDelivery[]> {
    // One after the other: two at once would each count the same bytes.
    const taking = this.#turn.then(() => this.#take(demand, signal))
    this.#turn = taking.catch(() => {})
    return taking
  }

  async #take({ count, bytes }: Demand, signal: AbortSignal): Promise<FileDelivery[]> {
    await this.#reclaim()
    const taken: FileDelivery[] = []
    let room = bytes
    for (const file of (await readdir(this.#at('waiting'))).filter((name) => name.endsWith('.json')).sort()) {
      if (taken.length >= count || signal.aborted || this.#closed || !this.live()) break
      const size = await stat(this.#at('waiting', file)).then(
        (found) => found.size,
        () => undefined,
      )
      if (size === undefined) continue
      if (size > room && taken.length > 0) break
      if (!(await moved(this.#at('waiting', file), join(this.own, file)))) continue
      const message = await this.#read(file)
      if (message === undefined) continue
      taken.push({ message, key: message.key, attempts: 0, size, file })
      room -= size
    }
    return taken
  }

  /** A file that cannot be read is put aside alone; the others of its batch go on. */
  async #read(file: string): Promise<RawMessage | undefined> {
    try {
      return fromStructured(await readFile(join(this.own, file)))
    } catch (error) {
      await this.#deadLetter(file, errorSummary(error))
      return undefined
    }
  }

  async settle(batch: readonly Settled<FileDelivery>[]): Promise<number> {
    if (this.#closed || !this.live()) return batch.length
    let stale = 0
    for (const [{ file }, settlement] of batch) {
      const path = join(this.own, file)
      let ours: boolean
      if (settlement.kind === 'dead') ours = await this.#deadLetter(file, settlement.reason)
      else if (settlement.kind === 'done') ours = await removed(path)
      else ours = await moved(path, this.#at('waiting', file))
      // It is not in our folder any more: settled before, or another has taken over.
      if (!ours) stale++
    }
    return stale
  }

  /** The reason first: a crash in between leaves a reason without a letter, never a letter without a reason. */
  async #deadLetter(file: string, reason: string): Promise<boolean> {
    await writeFile(this.#at('dead', `${file}.reason`), reason)
    return await moved(join(this.own, file), this.#at('dead', file))
  }

  async extend(): Promise<void> {
    const asked = systemClock.monotonic()
    await utimes(this.own, new Date(), new Date())
    this.#deadline = asked + this.#lease / 2
  }

  async close(): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    await this.#turn
    await this.#giveBack(this.own)
  }

  /** Gives back what sessions left that crashed. */
  async #reclaim(): Promise<void> {
    for (const name of await readdir(this.#at('taken'))) {
      const folder = this.#at('taken', name)
      const heard = await stat(folder).then(
        (found) => found.mtimeMs,
        () => Number.POSITIVE_INFINITY,
      )
      if (folder !== this.own && systemClock.now() - heard > this.#lease) await this.#giveBack(folder)
    }
  }

  async #giveBack(folder: string): Promise<void> {
    for (const file of await readdir(folder).catch(() => [])) await moved(join(folder, file), this.#at('waiting', file))
    await rm(folder, { recursive: true, force: true })
  }

  #at(...names: string[]): string {
    return join(this.#directory, ...names)
  }
}

/** Names sort in the order of publishing. */
function nextName(): string {
  const time = String(systemClock.now()).padStart(15, '0')
  return `${time}-${String(++count).padStart(9, '0')}-${randomUUID()}.json`
}

/** Whether it was there to be moved. */
async function moved(from: string, to: string): Promise<boolean> {
  return await rename(from, to).then(
    () => true,
    (error: NodeJS.ErrnoException) => notThere(error),
  )
}

async function removed(path: string): Promise<boolean> {
  return await rm(path).then(
    () => true,
    (error: NodeJS.ErrnoException) => notThere(error),
  )
}

function notThere(error: NodeJS.ErrnoException): false {
  if (error.code === 'ENOENT') return false
  throw error
}
