import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join, relative, sep } from 'node:path'
import { root, run } from './run.ts'

export interface TextFile {
  /** Path from the repository's folder, with `/`. */
  path: string
  text: string
}

const NEVER_TRACKED = new Set(['node_modules', 'dist', '.git', 'coverage', '.cache', 'reference'])

/**
 * Paths of the files git tracks. Without git (a tarball of the sources, a machine with only Node) every file
 * outside the ignored folders counts.
 */
export async function trackedFiles(): Promise<string[]> {
  const listed = await run('git', ['ls-files', '-z'])
  if (listed.code !== 0) return filesUnder('.')
  return listed.stdout.split('\0').filter((path) => path && exists(path))
}

/** Paths of all files under a folder of the repository, sorted; none when there is no such folder. */
export function filesUnder(folder: string): string[] {
  const found: string[] = []
  const visit = (path: string) => {
    for (const entry of readdirSync(path, { withFileTypes: true })) {
      if (entry.isDirectory() && !NEVER_TRACKED.has(entry.name)) visit(join(path, entry.name))
      if (entry.isFile()) found.push(relative(root, join(path, entry.name)).split(sep).join('/'))
    }
  }
  if (exists(folder)) visit(join(root, folder))
  return found.sort()
}

/** The text of the given files; files with a NUL byte near their start are binary and left out. */
export function readText(paths: string[]): TextFile[] {
  const files: TextFile[] = []
  for (const path of paths) {
    const bytes = readFileSync(join(root, path))
    if (!bytes.subarray(0, 8000).includes(0)) files.push({ path, text: bytes.toString('utf8') })
  }
  return files
}

// A tracked file may be deleted in the working tree, and a tracked path may be a submodule.
function exists(path: string): boolean {
  return statSync(join(root, path), { throwIfNoEntry: false }) !== undefined
}
