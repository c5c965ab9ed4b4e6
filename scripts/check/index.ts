import { parseArgs } from 'node:util'
import { embedded } from '../embed.ts'
import { loadMutations, rot } from '../mutations/mutation.ts'
import { boundaries } from './boundaries.ts'
import { codes } from './codes.ts'
import { exports } from './exports.ts'
import { files } from './files.ts'
import { gone } from './gone.ts'
import { links } from './links.ts'
import { lockfile } from './lockfile.ts'
import { names } from './names.ts'
import { namesakes } from './namesakes.ts'
import { atMost, type Findings, failure, root, runBin } from './run.ts'
import { samples } from './samples.ts'
import { smoke } from './smoke.ts'
import { subpaths } from './subpaths.ts'
import { waits } from './waits.ts'
import { walk } from './walk.ts'
import { words } from './words.ts'

/** `npm run check [-- names…] [--json]`: what must hold for every commit, one line each. */
const checks: Record<string, () => Findings | Promise<Findings>> = {
  types,
  lint,
  boundaries,
  exports,
  smoke,
  generated: embedded,
  mutations,
  lockfile,
  words,
  waits,
  files,
  names,
  namesakes,
  codes,
  walk,
  gone,
  links,
  samples,
  subpaths,
}

/**
 * The declarations are built first: examples/ and bench/ import the package by its public name and are checked
 * against what users get.
 */
async function types(): Promise<Findings> {
  const built = await runBin('typescript/bin/tsc', ['-p', 'tsconfig.build.json'])
  if (built.code !== 0) return failure('tsc (src)', built)
  const cache = ['--incremental', '--tsBuildInfoFile', '.cache/check.tsbuildinfo']
  return failure('tsc', await runBin('typescript/bin/tsc', ['--noEmit', ...cache]))
}

/** Warnings fail too: one that nobody must fix is one that nobody reads. */
async function lint(): Promise<Findings> {
  return failure(
    'biome',
    await runBin('@biomejs/biome/bin/biome', ['check', '--error-on-warnings', '--diagnostic-level=warn']),
  )
}

/** Only whether the list still fits the code; `npm run mutations` runs it. */
async function mutations(): Promise<Findings> {
  const rotted = (await loadMutations(root)).map((mutation) => ({ ...mutation, why: rot(root, mutation) }))
  return {
    problems: rotted.flatMap(({ list, name, why }) => (why ? [`test/mutations/${list}.ts: ${name}: ${why}`] : [])),
  }
}

interface Result extends Findings {
  name: string
  ok: boolean
  ms: number
}

async function perform(name: string): Promise<Result> {
  const started = performance.now()
  let findings: Findings
  try {
    findings = await checks[name]!()
  } catch (error) {
    findings = { problems: [error instanceof Error ? error.message : String(error)] }
  }
  return { name, ok: findings.problems.length === 0, ms: Math.round(performance.now() - started), ...findings }
}

function show({ name, ok, ms, problems, warnings = [], notes = [] }: Result): void {
  const looked = ok && warnings.length > 0 ? [`${warnings.length} to look at`] : []
  const said = [...notes, ...looked]
  const note = said.length > 0 ? `  (${said.join(', ')})` : ''
  console.log(`${name.padEnd(12)}${ok ? 'ok    ' : 'FAILED'}${(ms / 1000).toFixed(1).padStart(7)} s${note}`)
  for (const text of [...problems, ...warnings]) console.log(text.replace(/^/gm, '    '))
}

const { values, positionals } = parseArgs({ allowPositionals: true, options: { json: { type: 'boolean' } } })
const unknown = positionals.filter((name) => !Object.hasOwn(checks, name))
if (unknown.length > 0) {
  console.error(`no check is called ${unknown.join(', ')}; there are ${Object.keys(checks).join(', ')}`)
  process.exit(2)
}

process.once('SIGINT', () => process.exit(130))
process.once('SIGTERM', () => process.exit(143))
const results: Result[] = []
// Two at a time, as most of them are one busy process; told in the order of the table.
const limited = atMost(2)
const chosen = positionals.length > 0 ? positionals : Object.keys(checks)
for (const pending of chosen.map((name) => limited(() => perform(name)))) {
  const result = await pending
  results.push(result)
  if (!values.json) show(result)
}
const failed = results.filter(({ ok }) => !ok).map(({ name }) => name)
if (values.json) console.log(JSON.stringify({ ok: failed.length === 0, checks: results }, undefined, 2))
else if (failed.length > 0) console.log(`\nfailed: ${failed.join(', ')}`)
process.exitCode = failed.length > 0 ? 1 : 0
