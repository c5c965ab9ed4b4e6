import { randomBytes } from 'node:crypto'
import { describe, WaybillError } from '../core/index.ts'
import type { RedisArg, RedisReply } from '../drivers/redis/redis.ts'
import { mayBeSame } from '../drivers/redis/server.ts'
import { sameSlot } from '../drivers/redis/slot.ts'
import { TransactionGuard } from '../drivers/sql/transaction.ts'
import { type CommandRule, type KeyType, keyPlaces, WRITE_COMMANDS, type WriteCommand, writeOf } from './commands.ts'
import type { StepName } from './scripts.ts'

/** A word of a command. Numbers are written in decimal. */
export type RedisWord = string | number | Buffer

/** Each command by its name, with its words after the key: `tx.hset('{shop}:order:1', 'total', 10)`. */
export type RedisWrites<Answer> = {
  readonly [Name in WriteCommand]: (key: string, ...words: RedisWord[]) => Answer
}

/**
 * The commands of a unit of work. They are queued, run in one step when the work is done, and dropped when it fails. So
 * none of them has an answer here: whoever must read reads before, with a client of his own.
 */
export interface RedisTx extends RedisWrites<void> {
  /** The same with the name as a word. */
  command(name: WriteCommand | Uppercase<WriteCommand>, key: string, ...words: RedisWord[]): void
}

/** A function of Lua that takes part in the commit; how one is made is said in scripts.ts. */
export interface NamedStep {
  readonly step: StepName
  /** What its keys begin with, as the server has them: see `UnitSettings.key`. */
  readonly base: string
  /** All keys that it touches. */
  readonly keys: readonly string[]
  readonly args: readonly RedisArg[]
  /** Gets what the function returned, when the whole has committed. Must not throw. */
  readonly onCommit?: (answer: RedisReply) => void
}

export interface UnitSettings {
  /** A name as the server has it: with the client's prefix. */
  readonly key: (name: string) => string
  /** The beginning of a key, with the hash tag that all must share; absent where any will do. */
  readonly slot: string | undefined
  /** Where it is written, and what the client puts before keys; see RedisClient. */
  readonly server?: string | undefined
  readonly keyPrefix?: string
}

/** What the commit script is given for a step. */
export interface Queued {
  /** '' for a command. */
  readonly step: string
  /** What is named to the server beside the keys of commands. */
  readonly keys: readonly string[]
  readonly base: string
  readonly words: readonly RedisArg[]
  /** As errors name it, with its first key, never with its values. */
  readonly what: string
  readonly key: string | undefined
  readonly onCommit?: ((answer: RedisReply) => void) | undefined
}

/** How a unit has ended. `unknown`: no answer came, so it may have committed. */
export type UnitEnd = 'committed' | 'discarded' | 'unknown'

/** Lua can hand so many values to one call. */
const MOST_WORDS = 7000

/** Random once, and counted from there: randomness for each costs more than all else that a unit is here. */
const PROCESS = randomBytes(12).toString('base64url')
let tokens = 0

const NOTHING: readonly never[] = []
const NO_KEYS: ReadonlyMap<string, Touched> = new Map()

/** What is known of a key. */
interface Touched {
  /** What it must hold, or not exist, before anything is written. */
  check: KeyType | undefined
  /** Whether what is queued says what it holds then, and what; undefined once that is not known any more. */
  isKnown: boolean
  holds: KeyType | undefined
}

/** Refuses what comes after the end of a unit. */
const ENDED = new TransactionGuard()
ENDED.end()

/**
 * The queue of one unit of work, and the claims of the inbox that fence it. There is one for every message, and many of
 * them queue nothing: room is made when it is needed.
 */
export class Unit {
  /** What is queued frees memory before something else needs it: see commit.lua. */
  frees = false
  readonly #settings: UnitSettings
  #queue: Queued[] | undefined
  #claims: string[] | undefined
  #keys: Map<string, Touched> | undefined
  #ends: ((ending: UnitEnd) => void | Promise<void>)[] | undefined
  #token: string | undefined
  #open = true

  constructor(settings: UnitSettings) {
    this.#settings = settings
  }

  get queue(): readonly Queued[] {
    return this.#queue ?? NOTHING
  }

  /** Keys of claims that we hold under `token`. */
  get claims(): readonly string[] {
    return this.#claims ?? NOTHING
  }

  /** What it writes to, and what each must hold. */
  get keys(): ReadonlyMap<string, { readonly check: KeyType | undefined }> {
    return this.#keys ?? NO_KEYS
  }

  /** Nobody else has it. */
  get token(): string {
    this.#token ??= `processing ${PROCESS}-${(++tokens).toString(36)}`
    return this.#token
  }

  command(name: string, ...given: RedisWord[]): void {
    this.check()
    const write = writeOf(name)
    const { title } = write
    const words: RedisArg[] = []
    for (const word of given) words.push(wordOf(word, title, words.length))
    if (words.length < write.words || (write.exact && words.length > write.words) || words.length > MOST_WORDS) {
      const wanted = write.exact ? `${write.words}` : `${write.words} to ${MOST_WORDS}`
      throw new WaybillError('COMMAND_REFUSED', `unit of work: ${title} has ${words.length} words; it takes ${wanted}`)
    }
    const keys: string[] = []
    for (const at of keyPlaces(write, words)) {
      const key = given[at]
      if (typeof key !== 'string' || key === '') {
        throw new WaybillError('COMMAND_REFUSED', `unit of work: ${title}: word ${at + 1} must be a key; give a name`)
      }
      words[at] = this.#settings.key(key)
      keys.push(words[at] as string)
    }
    // SET with a condition may leave what was there.
    const conditional = title === 'SET' && words.length > write.words
    const touched = keys.map((key) => this.#touch(key))
    for (const [at, one] of touched.entries()) {
      const replaced = write.replaces && (at === 0 || write.keys === 'pairs')
      if (replaced) becomes(one, conditional || write.frees ? undefined : write.type)
      else this.#expect(keys[at]!, one, write)
    }
    this.frees ||= write.frees
    this.#push({ step: '', base: '', keys: NOTHING, words: [name, ...words], what: title, key: keys[0] })
  }

  add({ step, base, keys, args, onCommit }: NamedStep): void {
    this.check()
    this.#checkSlot(base)
    this.#push({ step, base, keys, words: args, what: step, key: base, onCommit })
  }

  /** A key whose type is looked at before anything is written. */
  expect(key: string, type: KeyType): void {
    const touched = this.#touch(key)
    if (!touched.isKnown) touched.check = type
    becomes(touched, type)
  }

  /** Fences the commit by a claim that holds our token now. */
  hold(claim: string): void {
    this.check()
    this.#checkSlot(claim)
    this.#claims ??= []
    if (!this.#claims.includes(claim)) this.#claims.push(claim)
  }

  /** Called when the unit has ended, however it did. */
  atEnd(fn: (ending: UnitEnd) => void | Promise<void>): void {
    this.#ends ??= []
    this.#ends.push(fn)
  }

  check(): void {
    if (!this.#open) ENDED.check()
  }

  /** The beginning of a key, with the hash tag that all must share; undefined where any will do. */
  get slot(): string | undefined {
    return this.#settings.slot
  }

  /** The server it is written to; undefined where that is not known. */
  get server(): string | undefined {
    return this.#settings.server
  }

  /** What stands before each of its keys. */
  get keyPrefix(): string {
    return this.#settings.keyPrefix ?? ''
  }

  /** Whether something can be queued still. */
  get open(): boolean {
    return this.#open
  }

  close(): void {
    this.#open = false
  }

  /** Nothing to wait for in most cases, and a promise costs every unit. */
  ended(ending: UnitEnd): Promise<unknown> | undefined {
    let waits: Promise<void>[] | undefined
    for (const end of this.#ends ?? NOTHING) {
      const wait = end(ending)
      if (wait === undefined) continue
      waits ??= []
      waits.push(wait)
    }
    return waits === undefined ? undefined : Promise.all(waits)
  }

  #push(queued: Queued): void {
    this.#queue ??= []
    this.#queue.push(queued)
  }

  #touch(key: string): Touched {
    this.#keys ??= new Map()
    let touched = this.#keys.get(key)
    if (touched === undefined) {
      this.#checkSlot(key)
      touched = { check: undefined, isKnown: false, holds: undefined }
      this.#keys.set(key, touched)
    }
    return touched
  }

  #checkSlot(key: string): void {
    const { slot } = this.#settings
    // What begins with it has its tag.
    if (slot !== undefined && !key.startsWith(slot) && !sameSlot(key, slot)) throw crossSlot(slot, key)
  }

  #expect(key: string, touched: Touched, { title, type, frees }: CommandRule): void {
    const { isKnown, holds } = touched
    if (type !== undefined && holds !== undefined && holds !== type) {
      const text = `unit of work: ${title} needs a ${type}, but what is queued before makes it a ${holds}: ${JSON.stringify(key)}`
      throw new WaybillError('WRONG_KEY_TYPE', text)
    }
    if (type !== undefined && !isKnown) touched.check = type
    becomes(touched, frees ? undefined : (type ?? holds))
  }
}

function becomes(touched: Touched, type: KeyType | undefined): void {
  touched.isKnown = true
  touched.holds = type
}

/** A method for each command. */
for (const name of WRITE_COMMANDS) {
  Object.defineProperty(Unit.prototype, name, {
    value(this: Unit, ...words: RedisWord[]) {
      this.command(name, ...words)
    },
  })
}

export function transactionOf(unit: Unit): RedisTx {
  return unit as unknown as RedisTx
}

/**
 * The unit behind a transaction; anything else would be a write that no commit takes along. One of another server than
 * `server` would take it to where nobody looks for it.
 */
export function unitOf(tx: unknown, server?: string): Unit {
  if (!(tx instanceof Unit)) {
    throw new WaybillError(
      'NOT_A_TRANSACTION',
      'a transaction is needed here, not a client; give the unit of work that withTransaction() passes to you',
    )
  }
  tx.check()
  if (mayBeSame(tx.server, server)) return tx
  throw new WaybillError(
    'NOT_A_TRANSACTION',
    `this unit of work is written to ${tx.server}, and the outbox is on ${server}; begin one with a store on the same server`,
  )
}

function crossSlot(slot: string, key: string): WaybillError {
  const tag = slot.slice(slot.indexOf('{') + 1, slot.indexOf('}'))
  return new WaybillError(
    'CROSSSLOT',
    `unit of work: what changes together must live in one slot of a cluster, so its keys need the hash tag ${tag}; give them ` +
      `names such as {${tag}}:count. This one has not: ${JSON.stringify(key)}`,
  )
}

export function wordOf(word: unknown, title: string, at: number): RedisArg {
  if (typeof word === 'string' || Buffer.isBuffer(word)) return word
  if (typeof word === 'number' && Number.isFinite(word)) return String(word)
  throw new WaybillError(
    'COMMAND_REFUSED',
    `unit of work: ${title}: word ${at + 1} is ${describe(word)}; give text, a number or a Buffer`,
  )
}
