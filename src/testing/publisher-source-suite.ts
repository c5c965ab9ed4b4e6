import { checkOptions, wholeNumber } from '../core/index.ts'
import { arrivalCases } from './broker-arrival-cases.ts'
import { BrokerProbe, type BrokerUnderTest } from './broker-probe.ts'
import { sessionCases } from './broker-session-cases.ts'
import { settlementCases } from './broker-settlement-cases.ts'
import { type Suite, type SuiteOptions, suite } from './conformance.ts'

/** What a broker can do. A case that needs what is not declared is skipped, and says so. */
export interface BrokerFeatures {
  /** Two groups each get every message. */
  readonly groups?: boolean
  /** Two sessions of one group share its messages. */
  readonly competing?: boolean
  /** A message that was settled `retry` is given again by the source itself. */
  readonly redelivers?: boolean
  /** … and not before its delay is over. */
  readonly delays?: boolean
  /** Attempts are counted across deliveries. */
  readonly attempts?: boolean
  /** Messages of one key come in the order they were published. */
  readonly ordered?: boolean
  /** While one of a key waits for its retry, later ones of that key are held back. */
  readonly holdsKeys?: boolean
  /** What is dead can be found, with the reason. */
  readonly deadLetters?: boolean
  /** There is a message that this publisher refuses, and `refused` makes one. */
  readonly refuses?: boolean
}

/** Makes a publisher and sources for the suite, fresh for each case. */
export interface BrokerFactory {
  readonly name: string
  readonly features: BrokerFeatures
  /** Called for every case: topics, streams and groups must be fresh each time. */
  create(): Promise<BrokerUnderTest>
  /** How long, in milliseconds, something may take that must happen. Default 15 s. */
  readonly patience?: number
  /** How long to look for something that must not happen. Default 250 ms. */
  readonly quiet?: number
  /** How much too early, in milliseconds, a delayed message may come: clocks are coarse. Default 20. */
  readonly tolerance?: number
}

/** What a case is given besides the broker. */
export interface CaseSettings {
  readonly features: BrokerFeatures
  readonly quiet: number
  readonly tolerance: number
}

export interface BrokerCase {
  readonly name: string
  readonly needs?: readonly (keyof BrokerFeatures)[]
  run(probe: BrokerProbe, settings: CaseSettings): Promise<void>
}

/** What every broker adapter must do: its publisher and its source together, on a real server. */
export function brokerSuite(factory: BrokerFactory, options: SuiteOptions = {}): Suite {
  const { name, features } = factory
  checkOptions(`broker suite ${name}`, factory, {
    name: true,
    features: true,
    create: true,
    patience: true,
    quiet: true,
    tolerance: true,
  })
  checkOptions(`broker suite ${name}`, options, { skips: true })
  checkOptions(`broker suite ${name}: features`, features, {
    groups: true,
    competing: true,
    redelivers: true,
    delays: true,
    attempts: true,
    ordered: true,
    holdsKeys: true,
    deadLetters: true,
    refuses: true,
  })
  const patience = wholeNumber(`broker suite ${name}: patience`, factory.patience ?? 15_000)
  const settings = { features, quiet: factory.quiet ?? 250, tolerance: factory.tolerance ?? 20 }
  const cases = [...arrivalCases, ...settlementCases, ...sessionCases].map((one) => ({
    ...one,
    run: async () => {
      const probe = new BrokerProbe(await factory.create(), patience)
      try {
        await one.run(probe, settings)
      } finally {
        await probe.end()
      }
    },
  }))
  return suite(name, cases, { ...features }, options)
}
