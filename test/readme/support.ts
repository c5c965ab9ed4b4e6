import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { locked } from '../../scripts/services/cache.ts'

export const root = fileURLToPath(new URL('../..', import.meta.url))

export function read(path: string): string {
  return readFileSync(join(root, path), 'utf8')
}

/** The samples of a page, in their order. */
export function samples(page: string): string[] {
  return [...read(page).matchAll(/```ts\n(.*?)```/gs)].map(([, code]) => code!)
}

/** Inside the repository, so that the package is found by its own name. */
export function temporaryFolder(): string {
  mkdirSync(join(root, '.cache'), { recursive: true })
  return mkdtempSync(join(root, '.cache', 'readme-'))
}

export interface Finished {
  readonly code: number | string | null
  readonly output: string
  readonly errors: string
}

export function node(...args: string[]): Promise<Finished> {
  return new Promise((resolve) => {
    const { FORCE_COLOR, ...rest } = process.env
    const env = { ...rest, NO_COLOR: '1' }
    execFile(process.execPath, args, { cwd: root, env, timeout: 170_000 }, (error, output, errors) => {
      resolve({ code: error === null ? 0 : (error.code ?? error.signal ?? 1), output, errors })
    })
  })
}

/**
 * Builds what is imported by the name of the package, as users do. One file of tests at a time: two compilers at once would
 * write over what the tests of the other read. The second finds nothing to do.
 */
export async function build(): Promise<void> {
  const clone = createHash('sha256').update(root).digest('hex').slice(0, 12)
  const compile = () => node('node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json')
  const { code, output } = await locked(`builds/${clone}`, compile)
  if (code !== 0) throw new Error(`tsc ended with ${code}\n${output}`)
}
