/** Writes what the runner's last lines need to the file named by WAYBILL_REPORT: what failed, what was skipped and why. */
import { writeFileSync } from 'node:fs'
import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node'

export interface Report {
  passed: number
  /** Each with the first line of what went wrong. */
  failed: { test: string; error: string }[]
  skipped: { file: string; test: string; reason: string }[]
}

export default class Counts implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>, unhandled: ReadonlyArray<SerializedError>): void {
    const report: Report = { passed: 0, failed: [], skipped: [] }
    const fails = (test: string, errors: ReadonlyArray<SerializedError>) => {
      if (errors.length) report.failed.push({ test, error: `${errors[0]!.message}`.split('\n')[0]! })
    }
    for (const error of unhandled) fails('outside of any test', [error])
    for (const module of modules) {
      const file = module.relativeModuleId
      // A file that cannot be loaded has no tests to count, and must not look like success.
      fails(file, module.errors())
      for (const suite of module.children.allSuites()) fails(`${file} > ${suite.fullName}`, suite.errors())
      for (const test of module.children.allTests()) {
        const result = test.result()
        if (result.state === 'passed') report.passed += 1
        else if (result.state === 'failed') fails(`${file} > ${test.fullName}`, result.errors)
        else report.skipped.push({ file, test: test.fullName, reason: reason(test) })
      }
    }
    const file = process.env['WAYBILL_REPORT']
    if (file) writeFileSync(file, JSON.stringify(report))
  }
}

/** `-t` also skips what its pattern does not match: that is a choice of the moment, not something left out. */
function reason(test: TestCase): string {
  const result = test.result()
  if (result.state === 'skipped' && result.note) return result.note
  // The mark of `describeWith()` in test/support/services.ts.
  const missing = /\[(without [^\]]+)\]/.exec(test.fullName)
  if (missing) return missing[1]!
  if (test.options.mode === 'todo') return 'to do'
  return test.options.mode === 'skip' ? 'skipped in the code' : ''
}
