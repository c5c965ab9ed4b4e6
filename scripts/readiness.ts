/**
 * `npm run readiness [-- --from report.json --printed output.txt]`: runs the tests of readiness-map.ts on real servers,
 * through the project's own runner, and writes docs/readiness.md. `--from` takes the JSON of a run before (vitest's
 * reporter `json`), `--printed` what that run printed, for the versions of its servers.
 * Exits with 1 when a line is not shown.
 */
import { spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { chapters } from './readiness-map.ts'
import { judge, page, type Run } from './readiness-page.ts'

const root = fileURLToPath(new URL('..', import.meta.url))

async function measure(): Promise<Run> {
  const files = [
    ...new Set(chapters.flatMap(({ lines }) => lines.flatMap(({ tests }) => tests.map(({ file }) => file)))),
  ]
  const folder = mkdtempSync(join(tmpdir(), 'waybill-readiness-'))
  const report = join(folder, 'report.json')
  try {
    const began = performance.now()
    const printed = await runTests([...files.sort(), '--reporter=json', `--outputFile.json=${report}`])
    const took = performance.now() - began
    return { report: JSON.parse(readFileSync(report, 'utf8')), took, servers: versions(printed) }
  } finally {
    rmSync(folder, { recursive: true })
  }
}

/** What the runner prints is shown, and read for the versions of its servers. */
function runTests(args: readonly string[]): Promise<string> {
  const child = spawn(process.execPath, ['--import', 'tsx', join(root, 'scripts/test.ts'), ...args], {
    cwd: root,
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal))
  let printed = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    printed += text
    process.stdout.write(text)
  })
  return new Promise((resolve, reject) => {
    child.on('error', reject)
    child.on('close', () => resolve(printed))
  })
}

function versions(printed: string): string[] {
  return [...printed.matchAll(/^· (\w+): (\S+) ready at/gm)].map(([, name, version]) => `${name} ${version}`)
}

const { values } = parseArgs({ options: { from: { type: 'string' }, printed: { type: 'string' } } })
const run: Run =
  values.from === undefined
    ? await measure()
    : {
        report: JSON.parse(readFileSync(values.from, 'utf8')),
        took: undefined,
        servers: values.printed === undefined ? [] : versions(readFileSync(values.printed, 'utf8')),
      }
const judged = judge(chapters, run.report)
const pglite = JSON.parse(readFileSync(join(root, 'node_modules/@electric-sql/pglite/package.json'), 'utf8')).version
const about = { node: process.version, pglite, date: new Date().toISOString().slice(0, 16).replace('T', ' ') }
writeFileSync(join(root, 'docs/readiness.md'), page(judged, run, about))
const open = judged.flatMap(({ lines }) => lines.filter(({ result }) => result !== 'passed'))
for (const { id, result, text } of open) console.log(`${id}  ${result}  ${text}`)
console.log(
  `docs/readiness.md: ${judged.flatMap(({ lines }) => lines).length - open.length} lines shown, ${open.length} not`,
)
process.exitCode = open.length > 0 ? 1 : 0
