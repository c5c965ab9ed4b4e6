/** `npm run mutations`: plants each fault of test/mutations/ in a copy of the repository and expects its test to turn red. */
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { type Listed, loadMutations, rot } from './mutations/mutation.ts'
import { type Result, runMutations } from './mutations/run.ts'
import { MARK } from './services/process.ts'
import { provision } from './services/provision.ts'
import { openRun } from './services/run.ts'
import type { Handover } from './services/types.ts'

const USAGE = `npm run mutations -- [--list] [--json] [words…]: plants each fault of test/mutations/ in a copy of the repository and
expects its test to turn red. Words choose the faults whose list, name, file or test contains one of them.

  killed     the test noticed
  SURVIVED   nobody would notice: a test is missing or too weak
  rotted     the list no longer fits the code, or the test is red without the fault`

const root = dirname(dirname(fileURLToPath(import.meta.url)))

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { list: { type: 'boolean' }, json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } },
  })
  if (values.help) {
    console.log(USAGE)
    return 0
  }
  const all = await loadMutations(root)
  const chosen = positionals.length === 0 ? all : all.filter((mutation) => matches(mutation, positionals))
  if (chosen.length === 0) throw new Error(`none of the ${all.length} mutations matches ${positionals.join(', ')}`)
  if (values.list) return list(chosen, values.json ?? false)

  if (positionals.length > 0) console.error(`· ${chosen.length} of ${all.length} mutations chosen`)
  const results: Result[] = []
  await withServices(chosen, async (env) => {
    for (const pending of runMutations(root, chosen, env)) {
      const result = await pending
      results.push(result)
      if (!values.json) show(result)
    }
  })
  const count = (verdict: Result['verdict']) => results.filter((result) => result.verdict === verdict).length
  const summary = { killed: count('killed'), survived: count('SURVIVED'), rotted: count('rotted') }
  if (values.json) {
    const faults = results.map(({ mutation, ...rest }) => ({ list: mutation.list, name: mutation.name, ...rest }))
    console.log(JSON.stringify({ ...summary, mutations: faults }, undefined, 2))
  } else {
    console.log(`\n${summary.killed} killed, ${summary.survived} survived, ${summary.rotted} rotted`)
  }
  return summary.survived + summary.rotted > 0 ? 1 : 0
}

/** The servers the chosen tests need: those of the run this one is part of, or new ones for as long as it takes. */
async function withServices(chosen: Listed[], work: (env: NodeJS.ProcessEnv) => Promise<void>): Promise<void> {
  if (process.env['WAYBILL_SERVICES']) return work(process.env)
  const run = await openRun()
  try {
    const needs = [...new Set(chosen.flatMap(({ needs = [] }) => needs))]
    const servers = await provision(needs, { run: run.dir, say: (text) => console.error(`· ${text}`) })
    const handover: Handover = { run: run.dir, servers, without: [] }
    await work({ ...process.env, WAYBILL_SERVICES: JSON.stringify(handover), [MARK]: run.dir })
  } finally {
    await run.close()
  }
}

function matches({ list, name, file, test }: Listed, words: string[]): boolean {
  const text = [list, name, file, test].join('\n').toLowerCase()
  return words.some((word) => text.includes(word.toLowerCase()))
}

function list(chosen: Listed[], json: boolean): number {
  const rows = chosen.map((mutation) => ({ ...mutation, rotted: rot(root, mutation) }))
  if (json) console.log(JSON.stringify(rows, undefined, 2))
  for (const { list, name, file, test, rotted } of json ? [] : rows) {
    console.log(`${list}: ${name}\n    ${file} → ${test}${rotted ? `\n    rotted: ${rotted}` : ''}`)
  }
  return rows.some(({ rotted }) => rotted) ? 1 : 0
}

function show({ mutation, verdict, why, ms }: Result): void {
  console.log(`${verdict.padEnd(9)}${(ms / 1000).toFixed(1).padStart(6)} s  ${mutation.list}: ${mutation.name}`)
  if (verdict !== 'killed') console.log(why.replace(/^/gm, '    '))
}

// Through exit handlers, so that no copy and no hanging test stays behind.
process.once('SIGINT', () => process.exit(130))
process.once('SIGTERM', () => process.exit(143))
main().then(
  (code) => {
    process.exitCode = code
  },
  (error: Error) => {
    console.error(error.message)
    process.exitCode = 2
  },
)
