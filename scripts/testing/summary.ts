/** The end of a run: what was not exercised, and the counts alone on the last line. */
import { readFile } from 'node:fs/promises'
import type { Options } from './arguments.ts'
import type { Report } from './reporter.ts'

export async function summary(
  file: string,
  options: Pick<Options, 'without'>,
): Promise<{ text: string; failed: number }> {
  // No report: vitest itself fell over, or found no test to run.
  const none: Report = { passed: 0, failed: 1, skipped: [] }
  const report = await readFile(file, 'utf8').then(
    (text) => JSON.parse(text) as Report,
    () => none,
  )
  const skipped = report.skipped.filter(({ reason }) => reason !== '')
  const lines = [
    ...options.without.map((name) => `  server ${name}: left out by --without`),
    ...skipped.map(({ test, reason }) => `  ${test}: ${reason}`),
  ]
  const counts = [`${report.passed} passed`, `${report.failed} failed`]
  if (report.skipped.length) counts.push(`${report.skipped.length} skipped`)
  const text = [...(lines.length ? ['Not exercised:', ...lines] : []), counts.join(', ')].join('\n')
  return { text, failed: report.failed }
}
