import {
  type BackoffOptions,
  backoff,
  type Clock,
  checkOptions,
  type Duration,
  describe,
  milliseconds,
  type OptionNames,
  type Random,
  systemClock,
  uuidv7,
  WaybillError,
  wholeNumber,
} from '../core/index.ts'
import { Parent, Task } from '../flow/index.ts'
import { checkStore, idText, Projection } from './definition.ts'
import type { Log } from './port.ts'
import { ProjectionRun, type ProjectionStatus } from './run.ts'
import type { ProjectionDatabase } from './store.ts'
import { Tail } from './tail.ts'
import { View } from './wait-for.ts'

/** What a projector runs, from which log, into which database. */
export interface ProjectorOptions<Tx> {
  /** Where the views are: `postgres({ pool, projections: true })`. */
  store: ProjectionDatabase<Tx>
  /** What they follow: `db.log` of an outbox with `log: true`. */
  log: Log
  projections: readonly Projection[]
  name?: string
  /** How many events are read and applied at once. Default 1000. */
  batch?: number
  /** A projector that has not renewed its right for so long is taken for dead. Default 30 s. */
  lease?: Duration
  /** The longest pause between two looks at the log; usually it is notified. Default 1 s. */
  poll?: Duration
  parked?: {
    /** So many parked events of one projection, and it stops. Default 10,000. */
    limit?: number
    /** The pauses between the tries of a parked event. Default 1 s doubling to 10 min. */
    backoff?: BackoffOptions
  }
  enrich?: {
    /** How many calls at once. Default 16. */
    concurrency?: number
    /** How long one call may take. Default 5 s. */
    timeout?: Duration
    /** An event whose calls fail for so long is parked. Default 30 s. */
    giveUp?: Duration
  }
  clock?: Clock
  random?: Random
}

const OPTIONS: OptionNames<ProjectorOptions<unknown>> = {
  store: true,
  log: true,
  projections: true,
  name: true,
  batch: true,
  lease: true,
  poll: true,
  parked: true,
  enrich: true,
  clock: true,
  random: true,
}

/**
 * Keeps views up to date from a log. Start as many as you like, in as many processes: each projection is run by one of them
 * at a time. Made of one task for each projection, one that reads the end of the log for all, and one that renews rights.
 */
export class Projector<Tx = unknown> extends Parent<void> {
  readonly name: string
  override readonly phase = 'relays'
  readonly store: ProjectionDatabase<Tx>
  readonly log: Log
  readonly runs: ReadonlyMap<string, ProjectionRun<Tx>>

  constructor(options: ProjectorOptions<Tx>) {
    checkOptions('projector', options, OPTIONS as OptionNames<ProjectorOptions<Tx>>)
    const { store, log, name = 'projector', clock = systemClock, random } = options
    super(clock)
    checkStore(name, store)
    checkOptions(`${name}: parked`, options.parked, { limit: true, backoff: true })
    checkOptions(`${name}: enrich`, options.enrich, { concurrency: true, timeout: true, giveUp: true })
    if (typeof log?.read !== 'function') {
      const text = `${name}: log is ${describe(log)}; declare the outbox one: postgres({ pool, outbox: { log: true } }), and give db.log`
      throw new WaybillError('INVALID_OPTION', text)
    }
    this.name = name
    this.store = store
    this.log = log
    const limit = wholeNumber(`${name}: batch`, options.batch ?? 1000, { max: 10_000 })
    const poll = milliseconds(options.poll ?? '1s', `${name}: poll`)
    const lease = milliseconds(options.lease ?? '30s', `${name}: lease`)
    const tail = new Tail(log, { name: `${name}: ${log.id}`, poll, limit, clock })
    const spread = random === undefined ? {} : { random }
    const defaults = { min: '1s', max: '10m', ...spread } as const
    const common = {
      db: store,
      tail,
      member: `${name} ${uuidv7()}`,
      lease,
      poll,
      clock,
      parkedLimit: wholeNumber(`${name}: parked.limit`, options.parked?.limit ?? 10_000),
      retryIn: backoff(options.parked?.backoff, `${name}: parked.backoff`, defaults),
      enrich: {
        concurrency: wholeNumber(`${name}: enrich.concurrency`, options.enrich?.concurrency ?? 16),
        timeout: milliseconds(options.enrich?.timeout ?? '5s', `${name}: enrich.timeout`),
        giveUp: milliseconds(options.enrich?.giveUp ?? '30s', `${name}: enrich.giveUp`),
      },
      ...spread,
    }
    const runs = new Map<string, ProjectionRun<Tx>>()
    for (const projection of options.projections) {
      if (!(projection instanceof Projection)) {
        throw new WaybillError('INVALID_OPTION', `${name}: ${describe(projection)} is not a projection`)
      }
      const id = idText(projection)
      if (runs.has(id)) throw new WaybillError('DUPLICATE_NAME', `${name}: projection ${id} is given twice`)
      const table = [...runs.values()].find((run) => run.projection.table === projection.table)
      if (table !== undefined) {
        const text = `${name}: ${id} and ${idText(table.projection)} both write ${projection.table}; give each a table of its own`
        throw new WaybillError('DUPLICATE_NAME', text)
      }
      runs.set(id, new ProjectionRun({ ...common, projection }))
    }
    if (runs.size === 0) throw new WaybillError('INVALID_OPTION', `${name}: there is no projection`)
    this.runs = runs
    const renew = async () => {
      for (const run of runs.values()) await run.renew()
    }
    this.register(tail, 'restart')
    this.register(new Task({ name: `${name}: leases`, every: lease / 3, run: renew, clock, ...spread }), 'restart')
    for (const run of runs.values()) this.register(run, 'restart')
  }

  /** How each projection is, here. */
  projections(): readonly ProjectionStatus[] {
    return [...this.runs.values()].map((run) => run.status())
  }

  /** A view for its readers in this process: they are notified directly. */
  view(projection: Projection): View {
    const here = this.runs.get(idText(projection))
    if (here !== undefined) return new View(this.store as ProjectionDatabase, projection, { here, clock: this.clock })
    const text = `${this.name} does not run ${idText(projection)}; use viewOf(store, projection)`
    throw new WaybillError('INVALID_OPTION', text)
  }

  /** Applies what there is, and returns. What another process runs is left to it. */
  async runOnce(): Promise<void> {
    for (const run of this.runs.values()) while (await run.runOnce()) {}
  }

  protected override async ended(): Promise<void> {
    await super.ended()
    // `runOnce` takes rights, too.
    for (const run of this.runs.values()) if (!run.started) await run.stop()
  }
}
