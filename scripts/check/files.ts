import type { Findings } from './run.ts'
import { filesUnder, readText } from './tracked.ts'

const LIMIT = 350

/** Long files are a question, not an error: what does it do twice? */
export function files(): Findings {
  const sources = readText(filesUnder('src').filter((path) => /\.tsx?$/.test(path) && !path.includes('.generated.')))
  const long = sources
    .map(({ path, text }) => ({ path, lines: text.trimEnd().split('\n').length }))
    .filter(({ lines }) => lines > LIMIT)
  return { problems: [], warnings: long.map(({ path, lines }) => `${path} has ${lines} lines (more than ${LIMIT})`) }
}
