import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Mutation, mutate } from './mutation.ts'

const LEFT_OUT = new Set(['node_modules', '.git', '.cache', 'dist', 'coverage'])

export interface Workspace {
  folder: string
  /** Does something while the fault is in. */
  with<T>(mutation: Mutation, work: () => Promise<T>): Promise<T>
}

/**
 * A copy of the repository in which faults can be planted: the tree itself stays as it is, for people work in it.
 * dist/ is left out on purpose: it would be built from the source without the fault.
 */
export function openWorkspace(root: string): Workspace {
  const folder = mkdtempSync(join(tmpdir(), 'waybill-mutations-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  for (const name of readdirSync(root)) {
    if (!LEFT_OUT.has(name)) cpSync(join(root, name), join(folder, name), { recursive: true, filter: unlessInstalled })
  }
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'), 'dir')
  return {
    folder,
    async with(mutation, work) {
      const path = join(folder, mutation.file)
      const text = readFileSync(path, 'utf8')
      writeFileSync(path, mutate(text, mutation))
      try {
        return await work()
      } finally {
        writeFileSync(path, text)
      }
    },
  }
}

/** bench/ may have packages of its own; nobody tests them. */
function unlessInstalled(path: string): boolean {
  return !path.endsWith('/node_modules')
}
