import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { build, node, read, temporaryFolder } from '../readme/support.ts'

/** Types that came with TypeScript 5.7 (`Uint8Array<ArrayBuffer>`) are in a declaration before anybody has noticed. */

const { exports } = JSON.parse(read('package.json')) as { exports: Record<string, { types: string } | string> }
const subpaths = Object.keys(exports).filter((subpath) => subpath !== './package.json')
const folder = temporaryFolder()
afterAll(() => rmSync(folder, { recursive: true }))

// The folder imports the package by its name, and so what was built.
beforeAll(build, 170_000)

async function compiled(...lines: string[]) {
  const options = { target: 'ES2022', module: 'NodeNext', strict: true, exactOptionalPropertyTypes: true, noEmit: true }
  // Nothing is skipped: our declarations must be right in themselves.
  const compilerOptions = { ...options, skipLibCheck: false, types: ['node'] }
  writeFileSync(join(folder, 'all.mts'), lines.join('\n'))
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['all.mts'] }))
  return await node('node_modules/typescript-5.4/bin/tsc', '-p', folder)
}

test('every subpath compiles with TypeScript 5.4, declarations too', { timeout: 170_000 }, async () => {
  expect(JSON.parse(read('node_modules/typescript-5.4/package.json'))).toMatchObject({ version: '5.4.5' })
  expect(subpaths).toContain('./rabbitmq')
  const imports = subpaths.map((subpath, index) => `export * as m${index} from 'waybill${subpath.slice(1)}'`)
  expect(await compiled(...imports)).toEqual({ code: 0, output: '', errors: '' })
})

test('what it does not know is an error there', { timeout: 170_000 }, async () => {
  const finished = await compiled('export declare const bytes: Uint8Array<ArrayBuffer>')
  expect(finished.code).not.toBe(0)
  expect(finished.output).toMatch(/^\S*all\.mts\(.*TS2315: Type 'Uint8Array' is not generic\.\n$/)
})
