/**
 * `npm run bench -- NAME [--json] …`: runs `bench/NAME.ts`. Tables for people; with `--json` one JSON object on the last
 * line. Numbers are no tests: whether goals are met is said, and changes nothing else.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { type Bench, type BenchOptions, machine, table } from './support/report.ts'

const folder = fileURLToPath(new URL('.', import.meta.url))

function available(): string[] {
  const files = readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isFile())
  return files.flatMap(({ name }) => (name.endsWith('.ts') && name !== 'run.ts' ? [name.slice(0, -3)] : [])).sort()
}

const usage = () => `usage: npm run bench -- NAME [flags]
NAME is one of: ${available().join(', ')}
  --json         one JSON object on the last line
  --quick        a look, in minutes: too short to be quoted
  --tiny         only whether it runs (redis, brokers)
  --full         with what takes long: ten million events (growth)
  --only=a,b     some of the parts (relay, redis) or brokers (brokers)
  --role=publish or --role=consume (brokers)`

/** What was asked for, or what is wrong with it. */
function asked(args: readonly string[]): (BenchOptions & { name: string; json: boolean }) | string {
  const flag = { type: 'boolean', default: false } as const
  const list = { type: 'string' } as const
  const options = { json: flag, quick: flag, tiny: flag, full: flag, only: list, role: list }
  try {
    const { values, positionals } = parseArgs({ args: [...args], options, allowPositionals: true })
    const [name, more] = positionals
    if (name === undefined) return 'which benchmark?'
    if (!available().includes(name)) return `there is no benchmark ${JSON.stringify(name)}`
    if (more !== undefined) return `one benchmark at a time: ${JSON.stringify(more)} is one too many`
    const { only, role, ...flags } = values
    const parts = only?.split(',')
    return { ...flags, name, part: (part) => parts?.includes(part) ?? true, roles: role?.split(',') }
  } catch (error) {
    return (error as Error).message
  }
}

async function main(args: readonly string[]): Promise<number> {
  const options = asked(args)
  if (typeof options === 'string') {
    console.error(`${options}\n${usage()}`)
    return 2
  }
  const { name, json } = options
  const { bench } = (await import(pathToFileURL(join(folder, `${name}.ts`)).href)) as { bench: Bench }
  const { results, goals, versions } = await bench(options)
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
