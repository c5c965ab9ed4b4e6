import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

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
