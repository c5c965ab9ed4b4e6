/**
 * `npm run move -- OLD NEW [OLD NEW …] [--dry]`: moves files of the repository, and everything that names them:
 * imports, mutations, the readiness map, links in the docs, mentions in comments, and the test beside it.
 */
import { mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseArgs } from 'node:util'
import { root } from './check/run.ts'
import { filesUnder, readText } from './check/tracked.ts'
import { plan } from './moving/plan.ts'

const { values, positionals } = parseArgs({ allowPositionals: true, options: { dry: { type: 'boolean' } } })
if (positionals.length === 0 || positionals.length % 2 !== 0) {
  console.error('npm run move -- OLD NEW [OLD NEW …] [--dry]: paths from the repository’s folder')
  process.exit(2)
}
const wanted = new Map<string, string>()
for (let i = 0; i < positionals.length; i += 2) wanted.set(positionals[i]!, positionals[i + 1]!)

const { moves, changed, problems } = plan(readText(filesUnder('.')), wanted)
for (const problem of problems) console.error(problem)
if (problems.length > 0) process.exit(1)

for (const [from, to] of moves) console.log(`${from} → ${to}`)
console.log(`${changed.length} files name them`)
if (!values.dry) {
  for (const [from, to] of moves) {
    mkdirSync(dirname(join(root, to)), { recursive: true })
    renameSync(join(root, from), join(root, to))
  }
  for (const { path, text } of changed) writeFileSync(join(root, path), text)
}
