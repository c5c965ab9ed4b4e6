import { createHash } from 'node:crypto'
import {
  type Clock,
  checkOptions,
  type Duration,
  describe,
  errorSummary,
  milliseconds,
  onAbort,
  telemetry,
  Unavailable,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import {
  isKind,
  isServerTrouble,
  type RedisCommands,
  RedisError,
  type RedisReply,
  textOf,
} from '../drivers/redis/redis.ts'
import {
  type CleanOptions,
  checkInboxKey,
  cleanOptions,
  type Inbox,
  type InboxAnswer,
  type InboxKey,
  type Once,
  once,
} from '../store/inbox.ts'
import { CallBatcher, type CallsInFlight, repliesOf } from './call-batcher.ts'
import { partlyApplied, refusalText } from './commit.ts'
import { Leases } from './inbox-leases.ts'
import { scripts } from './scripts.ts'
import { type RedisTx, type Unit, type UnitEnd, unitOf } from './unit.ts'

/**
 * Longer than what a group gives again by itself takes. Every message is remembered for so long, so that it is memory
 * too: about 200 bytes each.
 */
export const INBOX_RETENTION = '24h'

/** How long an inbox on Redis remembers, and how long a handler may take. */
export interface RedisInboxOptions {
  /** How long a handled message is remembered. Default 24 hours. */
  retention?: Duration
  /** How long the right to handle a message lasts when whoever has it dies; work renews it. Default 30 s. */
  lease?: Duration
  /**
   * The part of the claim's key that is the message's. Default: subscriber, source and id. In a router it is given
   * the whole message too; what is the same for all stores is the option `key` of `transactional` and `inbox`.
   */
  key?: (message: InboxKey) => string
}

export interface InboxSettings {
  readonly name: string
  readonly redis: RedisCommands
  readonly inFlight: CallsInFlight
  /** A name of ours as the server has it, in the slot that all share. */
  readonly own: (name: string) => string
  readonly clock: Clock
}

/** Whether a message is new. */
interface ClaimRequest {
  readonly claim: string
  readonly token: string
}

/**
 * What was handled. A message has a claim: `processing` and a token while somebody handles it, with a short expiry that
 * work renews; `done`, written with the work itself, for the retention. So a crash between the two loses nothing: the
 * claim expires, and the message is handled.
 */
export class RedisInbox implements Inbox<RedisTx> {
  readonly name: string
  readonly retention: number
  readonly #settings: InboxSettings
  readonly #lease: number
  readonly #keyOf: (message: InboxKey) => string
  readonly #leases: Leases
  readonly #receiving: CallBatcher<ClaimRequest, RedisReply>

  constructor(settings: InboxSettings, options: RedisInboxOptions = {}) {
    checkOptions('inbox', options, { retention: true, lease: true, key: true })
    this.name = settings.name
    this.#settings = settings
    this.retention = wholeNumber('inbox.retention', Math.round(milliseconds(options.retention ?? INBOX_RETENTION)))
    this.#lease = wholeNumber('inbox.lease', Math.round(milliseconds(options.lease ?? '30s')), { min: 100 })
    this.#keyOf = options.key ?? defaultKey
    this.#leases = new Leases({ redis: settings.redis, lease: this.#lease, clock: settings.clock })
    this.#receiving = new CallBatcher(async (asked) => {
      const claims = asked.map(({ claim }) => claim)
      const tokens = asked.map(({ token }) => token).join('\n')
      return repliesOf(await settings.redis.script(scripts.receive, claims, [String(this.#lease), tokens]))
    }, settings.inFlight)
  }

  /**
   * `new` when the right to handle it is ours now. It is given up when `signal` aborts: whoever was asked to stop must
   * not keep others waiting, and can no longer commit.
   */
  receive(tx: RedisTx, message: InboxKey, signal?: AbortSignal): Promise<InboxAnswer> {
    try {
      const claim = this.#claimOf(message)
      const unit = unitOf(tx)
      if (unit.claims.includes(claim)) return Promise.resolve('done')
      signal?.throwIfAborted()
      const answered = (reply: RedisReply) => {
        if (reply === 1) return this.#hold(unit, claim, signal)
        if (!Array.isArray(reply) && this.#leases.isAbandoned(claim, textOf(reply))) {
          return this.#takeBack(textOf(reply), claim, () => this.receive(tx, message, signal))
        }
        return heldBy(claim, reply)
      }
      const failed = (error: unknown): never => {
        // Without a reply the claim may be there, and nobody uses it.
        if (!(error instanceof RedisError)) this.#abandon(claim, unit.token)
        throw refusal(claim, error)
      }
      return this.#receiving.ask({ claim, token: unit.token }, claim.length, answered, failed)
    } catch (error) {
      return Promise.reject(error)
    }
  }

  /** It is of this process, and of nobody who works on it any more. */
  async #takeBack(token: string, claim: string, again: () => Promise<InboxAnswer>): Promise<InboxAnswer> {
    await this.#settings.redis.script(scripts.release, [claim], [token])
    return await again()
  }

  /** The claim is ours. When all is over meanwhile it must not be left behind. */
  #hold(unit: Unit, claim: string, signal: AbortSignal | undefined): InboxAnswer | Promise<InboxAnswer> {
    const release = () => this.#release(unit, claim)
    try {
      signal?.throwIfAborted()
      unit.hold(claim)
    } catch (error) {
      return release().then(() => {
        throw error
      })
    }
    this.#leases.hold(claim, unit.token)
    const forget = signal === undefined ? undefined : onAbort(signal, release)
    unit.atEnd((ending) => {
      forget?.()
      return this.#ended(unit, claim, ending)
    })
    return 'new'
  }

  /** For code outside a router: runs `fn` unless this subscriber has handled the message before. */
  async once<T>(
    tx: RedisTx,
    subscriber: string,
    { source, id }: { readonly source: string; readonly id: string },
    fn: () => T | Promise<T>,
  ): Promise<Once<T>> {
    return once(this, tx, { subscriber, source, id }, fn)
  }

  /** There is nothing to do: Redis forgets by itself when the retention is over. */
  async clean(options: CleanOptions = {}): Promise<number> {
    cleanOptions(options, this.retention)
    return 0
  }

  /**
   * Forgets a message, so that it is handled again when it is given again. For people: after work that was applied in
   * part has been put right. Returns whether there was something to forget.
   */
  async forget(message: InboxKey): Promise<boolean> {
    return (await this.#settings.redis.command(['del', this.#claimOf(message)])) === 1
  }

  /** Whether a claim is gone that a unit holds, and not because it took too long. */
  lostByServer(claim: string, token: string): boolean {
    return this.#leases.lostByServer(claim, token)
  }

  async close(): Promise<void> {
    await this.#leases.close()
  }

  #ended(unit: Unit, claim: string, ending: UnitEnd): void | Promise<void> {
    if (ending !== 'committed') return this.#release(unit, claim)
    this.#leases.release(claim, unit.token)
  }

  /** Whoever comes next need not wait for the lease to run out. */
  async #release(unit: Unit, claim: string): Promise<void> {
    this.#leases.release(claim, unit.token)
    try {
      await this.#settings.redis.script(scripts.release, [claim], [unit.token])
    } catch (error) {
      this.#abandon(claim, unit.token, error)
    }
  }

  /** Reported once for as long as Redis does not respond, however many claims it is. */
  #abandon(claim: string, token: string, error?: unknown): void {
    if (!this.#leases.abandon(claim, token) || error === undefined) return
    const message = `claims could not be given up; they are as soon as Redis responds, or end by themselves in ${this.#lease} ms: ${errorSummary(error)}`
    telemetry.warning.publish({ where: `inbox ${this.name}`, message })
  }

  #claimOf(message: InboxKey): string {
    checkInboxKey(message)
    const key = this.#keyOf(message)
    if (typeof key === 'string' && key !== '') return this.#settings.own(`inbox:${key}`)
    throw new WaybillError(
      'INVALID_OPTION',
      `inbox: key: ${describe(key)} is not a name; return text that is not empty`,
    )
  }
}

/** The claim is not ours: its value says what became of the message. */
function heldBy(claim: string, reply: RedisReply): InboxAnswer {
  if (Array.isArray(reply)) throw refusal(claim, new RedisError(refusalText(textOf(reply[0]))))
  const held = textOf(reply)
  if (held === 'done') return 'done'
  if (held.startsWith('partly ')) throw partlyApplied(`an earlier attempt was applied in part (${held})`)
  if (held.startsWith('processing ')) return 'busy'
  throw foreign(claim)
}

function refusal(claim: string, error: unknown): unknown {
  if (isKind(error, 'WRONGTYPE') || /wrong kind of value/i.test(messageOf(error))) return foreign(claim, error)
  if (isServerTrouble(error)) return new Unavailable(`Redis refused: ${messageOf(error)}`, { cause: error })
  return error
}

function foreign(claim: string, cause?: unknown): WaybillError {
  const text = `inbox: there is no claim of ours in the key of that name; remove it, or choose another tag: ${JSON.stringify(claim)}`
  return new WaybillError('WRONG_KEY_TYPE', text, cause === undefined ? undefined : { cause })
}

const LONGEST = 200

/** What most claims begin with: a subscriber hears from the same source again and again. */
let beginning = { subscriber: '', source: '', text: '' }

/** As JSON, so that no two run into each other and people can read it; its hash when it is long. */
function defaultKey({ subscriber, source, id }: InboxKey): string {
  if (beginning.subscriber !== subscriber || beginning.source !== source) {
    beginning = { subscriber, source, text: `${JSON.stringify(subscriber)},${JSON.stringify(source)}` }
  }
  const text = `[${beginning.text},${JSON.stringify(id)}]`
  return text.length <= LONGEST ? text : `sha256:${createHash('sha256').update(text).digest('base64url')}`
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
