/** The end of a run: what was not exercised, what failed, and the counts alone on the last line. */
import { readFile } from 'node:fs/promises'
import type { Options } from './arguments.ts'
import type { Report } from './reporter.ts'

export async function summary(
  file: string,
  options: Pick<Options, 'without'>,
): Promise<{ text: string; failed: number }> {
  const none: Report = {
    passed: 0,
    failed: [{ test: 'vitest', error: 'no report: it fell over, or found no test to run' }],
    skipped: [],
  }
  const { passed, failed, skipped } = await readFile(file, 'utf8').then(
    (text) => JSON.parse(text) as Report,
    () => none,
  )
  const notExercised = [
    ...options.without.map((name) => `  server ${name}: left out, as asked`),
    ...byReason(skipped.filter(({ reason }) => reason !== '')),
  ]
  const counts = [`${passed} passed`, `${failed.length} failed`]
  if (skipped.length) counts.push(`${skipped.length} skipped`)
  const text = [
    ...(notExercised.length ? ['Not exercised:', ...notExercised] : []),
    ...(failed.length ? ['Failed:', ...failed.map(({ test, error }) => `  ${test}: ${error}`)] : []),
    counts.join(', '),
  ].join('\n')
  return { text, failed: failed.length }
}

/** One line for all tests of a file that are skipped for one reason. */
function byReason(skipped: Report['skipped']): string[] {
  const tests = new Map<string, string[]>()
  for (const { file, test, reason } of skipped) {
    const why = `${file}\n${reason}`
    tests.set(why, [...(tests.get(why) ?? []), test])
  }
  return [...tests].map(([why, names]) => {
    const [file, reason] = why.split('\n')
    return `  ${file} > ${names.length === 1 ? names[0] : `${names.length} tests`}: ${reason}`
  })
}
