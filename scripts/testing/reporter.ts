/** Writes what the runner's last lines need to the file named by WAYBILL_REPORT; skipped tests with their reasons. */
import { writeFileSync } from 'node:fs'
import type { Reporter, SerializedError, TestCase, TestModule } from 'vitest/node'

export interface Report {
  passed: number
  failed: number
  skipped: { test: string; reason: string }[]
}

export default class Counts implements Reporter {
  onTestRunEnd(modules: ReadonlyArray<TestModule>, unhandled: ReadonlyArray<SerializedError>): void {
    const report: Report = { passed: 0, failed: unhandled.length, skipped: [] }
    for (const module of modules) {
      // A file that cannot be loaded has no tests to count, and must not look like success.
      if (module.errors().length) report.failed += 1
      for (const suite of module.children.allSuites()) if (suite.errors().length) report.failed += 1
      for (const test of module.children.allTests()) {
        const result = test.result()
        if (result.state === 'passed') report.passed += 1
        else if (result.state === 'failed') report.failed += 1
        else report.skipped.push({ test: `${module.relativeModuleId} > ${test.fullName}`, reason: reason(test) })
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
