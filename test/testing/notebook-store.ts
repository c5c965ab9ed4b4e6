import {
  AmbientUnitOfWork,
  type CleanOptions,
  checkEnqueueOptions,
  checkedEvent,
  checkInboxKey,
  eventUuid,
  type InboxAnswer,
  type InboxKey,
  milliseconds,
  type OptionNames,
  publishEnqueued,
  systemClock,
  topicOf,
} from '../../src/adapter.ts'
import {
  type Clock,
  type EnqueueOptions,
  type Inbox,
  type Message,
  type Outbox,
  type RawMessage,
  type Store,
  WaybillError,
} from '../../src/index.ts'

/** A transaction: what it writes is in the notebook with its commit. */
export class Page {
  readonly #writes: (() => void)[] = []
  readonly #afterwards: (() => void)[] = []
  #open = true

  write(entry: () => void): void {
    if (!this.#open) throw new WaybillError('NO_TRANSACTION', 'the transaction has ended')
    this.#writes.push(entry)
  }

  /** Runs after the commit, and after a rollback. */
  afterwards(fn: () => void): void {
    this.#afterwards.push(fn)
  }

  end(commit: boolean): void {
    this.#open = false
    if (commit) for (const write of this.#writes) write()
    for (const fn of this.#afterwards) fn()
  }
}

async function begin<T>(fn: (page: Page) => Promise<T>): Promise<T> {
  const page = new Page()
  let done = false
  try {
    const value = await fn(page)
    done = true
    return value
  } finally {
    page.end(done)
  }
}

export class NotebookInbox implements Inbox<Page> {
  readonly name = 'inbox'
  readonly #clock: Clock
  /** When each was handled. */
  readonly #handled = new Map<string, number>()
  readonly #open = new Map<string, Page>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  async receive(page: Page, key: InboxKey): Promise<InboxAnswer> {
    checkInboxKey(key)
    const name = JSON.stringify([key.subscriber, key.source, key.id])
    const other = this.#open.get(name)
    // Another may commit or roll back: nobody knows yet.
    if (other !== undefined && other !== page) return 'busy'
    if (other !== undefined || this.#handled.has(name)) return 'done'
    page.write(() => this.#handled.set(name, this.#clock.now()))
    this.#open.set(name, page)
    page.afterwards(() => this.#open.delete(name))
    return 'new'
  }

  async clean({ retention = milliseconds('30d'), limit = 10_000 }: CleanOptions = {}): Promise<number> {
    const before = this.#clock.now() - retention
    const old = [...this.#handled].filter(([, at]) => at <= before).slice(0, limit)
    for (const [name] of old) this.#handled.delete(name)
    return old.length
  }
}

const OPTIONS: OptionNames<EnqueueOptions> = {
  key: true,
  topic: true,
  tenant: true,
  availableAt: true,
  aggregate: true,
}

export class NotebookOutbox implements Outbox<Page> {
  readonly name = 'outbox'
  readonly rows = new Map<string, { topic: string; message: RawMessage; availableAt: Date | undefined }>()

  async enqueue(page: Page, events: readonly Message[], options: EnqueueOptions = {}): Promise<undefined[]> {
    checkEnqueueOptions(options, OPTIONS)
    // All of them, before the first is written: one that is wrong leaves nothing behind.
    const checked = events.map((event) => ({ id: eventUuid(event), ...checkedEvent(event, options, topicOf) }))
    for (const { id, topic, raw, key, tenant } of checked) {
      const extensions = {
        ...(key === undefined ? {} : { partitionkey: key }),
        ...(tenant === '' ? {} : { tenantid: tenant }),
      }
      const row = { topic, message: raw.with({ extensions }), availableAt: options.availableAt }
      page.write(() => {
        // The same event again changes nothing.
        if (!this.rows.has(id)) this.rows.set(id, row)
      })
    }
    const enqueued = checked.map(({ topic }) => ({ topic, isNew: true }))
    publishEnqueued(this.name, enqueued)
    // Known with the commit only.
    return checked.map(() => undefined)
  }
}

/** `transactional(new Notebook())` is all that a router needs. */
export class Notebook extends AmbientUnitOfWork<Page> implements Store<Page> {
  readonly name = 'notebook'
  readonly outbox = new NotebookOutbox()
  readonly inbox: NotebookInbox

  constructor(clock: Clock = systemClock) {
    super(begin)
    this.inbox = new NotebookInbox(clock)
  }
}
