import { nearest, systemClock, WaybillError, withDeadline } from '../core/index.ts'

/** One thing that every implementation of a port must do. */
export interface Case {
  readonly name: string
  /** Features it is about: an implementation that does not declare them is not asked. */
  readonly needs?: readonly string[]
  run(): Promise<void>
}

/** A case as a test file gets it. `skip` says why it is not run. */
export interface Check {
  readonly name: string
  readonly skip: string | undefined
  run(): Promise<void>
}

/**
 * A suite is data; any test runner will do:
 *
 *     for (const { name, skip, run } of brokerSuite(mine)) test.skipIf(skip)(name, run)   // vitest
 *     for (const { name, skip, run } of brokerSuite(mine)) test(name, { skip }, run)      // node:test
 */
export type Suite = readonly Check[]

/** Which cases of a suite are skipped, each with its reason. */
export interface SuiteOptions {
  /** Cases not to run, by name, each with the reason. */
  skips?: Readonly<Record<string, string>>
}

/** Puts a suite together from its cases, what the implementation declares and what it asks to be spared. */
export function suite(
  name: string,
  cases: readonly Case[],
  features: Readonly<Record<string, boolean | undefined>>,
  { skips = {} }: SuiteOptions = {},
): Suite {
  const names = cases.map((one) => one.name)
  const twice = names.find((one, i) => names.indexOf(one) !== i)
  if (twice !== undefined) throw new WaybillError('INVALID_OPTION', `${name}: two cases are named "${twice}"`)
  for (const [skipped, reason] of Object.entries(skips)) {
    if (!names.includes(skipped)) {
      const near = nearest(skipped, names)
      const hint = near === undefined ? '' : `; did you mean "${near}"?`
      throw new WaybillError('INVALID_OPTION', `${name}: there is no case "${skipped}" to skip${hint}`)
    }
    if (typeof reason !== 'string' || reason.trim().length < 10) {
      throw new WaybillError('INVALID_OPTION', `${name}: skipping "${skipped}" needs a reason that explains it`)
    }
  }
  return cases.map(({ name: caseName, needs = [], run }) => {
    const missing = needs.filter((need) => !features[need])
    const undeclared = missing.length > 0 ? `${name} does not declare: ${missing.join(', ')}` : undefined
    return { name: caseName, skip: skips[caseName] ?? undeclared, run }
  })
}

/** Waits for `work`, but no longer than `limit` real milliseconds; then it rejects and says how far it came. */
export function within<T>(limit: number, work: Promise<T>, progress: () => string): Promise<T> {
  return withDeadline(work, limit, systemClock, () => {
    throw new WaybillError('TOO_LATE', `after ${limit} ms: ${progress()}`)
  })
}
