/**
 * `npm run bench -- NAME [--json] [flags of the benchmark]`: runs `bench/NAME.ts`. Tables for people; with `--json` one
 * JSON object on the last line. Numbers are no tests: whether goals are met is said, and changes nothing else.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { type Bench, machine, table } from './support/report.ts'

const folder = fileURLToPath(new URL('.', import.meta.url))

function available(): string[] {
  const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile())
  return files.flatMap(({ name }) => (name.endsWith('.ts') && name !== 'run.ts' ? [name.slice(0, -3)] : [])).sort()
}

async function main(args: readonly string[]): Promise<number> {
  const json = args.includes('--json')
  const name = args.find((arg) => !arg.startsWith('-'))
  if (name === undefined || !available().includes(name)) {
    console.error(`usage: npm run bench -- NAME [--json]\nNAME is one of: ${available().join(', ')}`)
    return 2
  }
  const flags = args.filter((arg) => arg !== '--json' && arg !== name)
  const { bench } = (await import(pathToFileURL(join(folder, `${name}.ts`)).href)) as { bench: Bench }
  const { results, goals, versions } = await bench({ flags })
  const waybill = JSON.parse(readFileSync(join(folder, '../package.json'), 'utf8')).version as string
  const all = { waybill, node: process.version, ...versions }
  console.log(`${name} on ${machine()}`)
  console.log(
    `${Object.entries(all)
      .map(([what, version]) => `${what} ${version}`)
      .join(', ')}\n`,
  )
  console.log(`${table(results)}\n\n${table(goals)}`)
  if (json) console.log(JSON.stringify({ bench: name, machine: machine(), versions: all, results, goals }))
  return 0
}

process.exitCode = await main(process.argv.slice(2))
